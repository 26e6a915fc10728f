//! A file mapped for reading, whose pages may turn out to be unreadable.
//!
//! A page of a map is read from the disk when it is touched. If that is impossible (the file was cut by someone else, the disk has a bad
//! sector, a hole finds no space on a full tmpfs) the kernel sends SIGBUS, which ends the process without a word. Here a handler puts a page
//! of zeros in the place of the one that is missing, counts a fault of the file, and lets the reader go on. So
//!
//! - **whoever read through a map asks afterwards whether there was a fault since he began** ([`Soundness::holds`]), before he uses what he
//!   read; what does not hold is read again by a plain read, which gives the error;
//! - a file whose map had a fault is mapped anew for the next reader;
//! - the kernel itself, writing a slice to a socket, sends no signal: the write fails.
//!
//! A SIGBUS anywhere else says so in one line on stderr, and ends the process as it would have.
//!
//! The handler may run at any moment on any thread. It takes no lock and allocates nothing: the maps stand in a table of fixed size. A map
//! that finds no place there is not made: its file is read by copying.

#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    fs, io, mem, ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use memmap2::Mmap;

use super::Soundness;

/// Most maps at a time.
const MAPS_MAX: usize = 16_384;

/// The maps there are.
static TABLE: [Slot; MAPS_MAX] = [const { Slot::free() }; MAPS_MAX];
/// Slots from this one on were never taken.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Length of a page; 0 until the handler is installed.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Where one map lies, and where its faults are counted. Written by its owner: `start` before `bytes`, and `bytes` is 0 while it is not valid.
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    bytes: AtomicUsize,
    faults: AtomicPtr<AtomicU64>,
}

impl Slot {
    const fn free() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            faults: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Whether the map holds an address. An answer of yes to who holds the map is right; the slot may change meanwhile if it is another's.
    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        let bytes = self.bytes.load(Ordering::SeqCst);
        let offset = address.wrapping_sub(start);
        offset < bytes && self.start.load(Ordering::SeqCst) == start
    }
}

/// A count of the pages of a file that could not be read.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<AtomicU64>);

impl Faults {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// What holds until the next fault.
    pub(super) fn soundness(&self) -> Soundness {
        Soundness::of(Arc::clone(&self.0))
    }
}

/// A map and its place in the table.
struct FileMap {
    map: Mmap,
    slot: &'static Slot,
    /// Kept alive for the handler.
    _faults: Faults,
}

/// Maps a file; `None` if there are too many maps already.
///
/// # Errors
/// As the system gives them.
pub(super) fn map(file: &fs::File, faults: &Faults) -> io::Result<Option<Bytes>> {
    install()?;
    let free = TABLE
        .iter()
        .enumerate()
        .find(|(_, slot)| slot.taken.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok());
    let Some((number, slot)) = free else { return Ok(None) };
    USED.fetch_max(number + 1, Ordering::SeqCst);
    // SAFETY: a map is sound as long as nobody sees its bytes change and none of its pages goes away.
    // - Bytes change only by `write_at` and `zero`. Their contract (see `File`) is that a range is sliced only after it was finished and is never
    //   written again while the slice is held; the store upholds it by publishing the end of what is written. Other processes are kept out by
    //   the lock of the store.
    // - Nothing in the crate shortens a mapped file, and a removed one keeps its pages. A page that goes away all the same becomes one of zeros,
    //   and a fault is counted before anybody reads it: what was read is not used then.
    // - The map is handed out only as slices of a `Bytes` that owns it, so it outlives every slice.
    let map = match unsafe { Mmap::map(file) } {
        Ok(map) => map,
        Err(error) => {
            slot.taken.store(false, Ordering::SeqCst);
            return Err(error);
        }
    };
    slot.faults.store(Arc::as_ptr(&faults.0).cast_mut(), Ordering::SeqCst);
    slot.start.store(map.as_ptr() as usize, Ordering::SeqCst);
    slot.bytes.store(map.len(), Ordering::SeqCst);
    Ok(Some(Bytes::from_owner(FileMap { map, slot, _faults: faults.clone() })))
}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // Before the map is given back: another one may lie there afterwards.
        self.slot.bytes.store(0, Ordering::SeqCst);
        self.slot.faults.store(ptr::null_mut(), Ordering::SeqCst);
        self.slot.taken.store(false, Ordering::SeqCst);
    }
}

/// Installs the handler, once for the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: a question without arguments that point anywhere.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_BYTES.store(usize::try_from(page).unwrap_or(4096), Ordering::SeqCst);
        // SAFETY: all zero is a valid `sigaction`; the handler has the signature that SA_SIGINFO asks for, and does only what a handler may.
        let outcome = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut())
        };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)) }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Lets the reader of a map go on; for anything else, the end of the process with its reason.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands over a valid `siginfo_t`; `errno` is this thread's.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr() as usize, *libc::__errno_location()) };
    // A code above 0 is a fault of the processor; else somebody sent the signal.
    if code > 0 && replace_page(address) {
        // SAFETY: as above; whoever was interrupted finds it as it was.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    let mut line = *b"latermq: stopped: SIGBUS at 0x0000000000000000, memory that cannot be read (bad memory, or a file that was cut)\n";
    let digits = b"0123456789abcdef";
    for (place, digit) in line[30..46].iter_mut().enumerate() {
        *digit = digits[address >> (60 - 4 * place) & 15];
    }
    // SAFETY: writing a buffer of this stack, setting the default action and raising are allowed in a handler. A fault comes again on return.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::signal(signal, libc::SIG_DFL);
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Puts zeros in the place of the page that holds `address`, if that lies in a map of the table.
fn replace_page(address: usize) -> bool {
    let mut found = false;
    for slot in &TABLE[..USED.load(Ordering::SeqCst).min(MAPS_MAX)] {
        if !slot.holds(address) {
            continue;
        }
        let faults = slot.faults.load(Ordering::SeqCst);
        if !faults.is_null() {
            // SAFETY: this thread reads the map, so that it is not dropped before this returns, nor is the count that it keeps alive.
            unsafe { (*faults).fetch_add(1, Ordering::SeqCst) };
            found = true;
        }
    }
    let page_bytes = PAGE_BYTES.load(Ordering::SeqCst);
    if !found || page_bytes == 0 {
        return false;
    }
    let page = address & !(page_bytes - 1);
    // SAFETY: the page lies in a map of this process that is read-only and stays so; only what is read there changes, as said above.
    let mapped = unsafe {
        libc::mmap(
            page as *mut c_void,
            page_bytes,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    /// A file of two pages, mapped and then cut to one.
    fn cut_file() -> (fs::File, Faults, Bytes) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let faults = Faults::default();
        let map = map(&file, &faults).unwrap().unwrap();
        file.set_len(4096).unwrap();
        (file, faults, map)
    }

    #[test]
    fn a_page_that_is_gone_reads_as_zeros_and_its_fault_is_counted() {
        let (_file, faults, map) = cut_file();
        let soundness = faults.soundness();
        assert_eq!(map[..4096], [0; 4096]);
        assert!(soundness.holds());

        let seen = map[5000];

        assert_eq!(seen, 0);
        assert!(!soundness.holds());
        assert_eq!(faults.count(), 1);
        assert_eq!(map[8191], 0, "the same page again is no new fault");
        assert_eq!(faults.count(), 1);
        assert!(faults.soundness().holds());
    }

    #[test]
    fn a_fault_of_one_file_is_none_of_another_on_whatever_thread() {
        let (_file, faults, map) = cut_file();
        let (_other, other_faults, other) = cut_file();

        std::thread::spawn(move || assert_eq!(map[4096], 0)).join().unwrap();

        assert_eq!((faults.count(), other_faults.count()), (1, 0));
        assert_eq!(other[4096], 0);
        assert_eq!((faults.count(), other_faults.count()), (1, 1));
    }

    #[test]
    fn the_kernel_fails_a_write_from_a_page_that_is_gone() {
        use std::io::Write;
        let (_file, faults, map) = cut_file();
        let mut out = tempfile::tempfile().unwrap();

        let written = out.write(&map[4096..]);

        assert!(written.is_err(), "{written:?}");
        assert_eq!(faults.count(), 0);
    }

    /// Not a test of its own but the second process of the one below: reads a page that no table knows.
    #[test]
    #[ignore = "only run as a second process by another test"]
    fn second_process() {
        let (_file, _faults, map) = cut_file();
        assert_eq!(map[4096], 0);
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        // SAFETY: nobody else has the file; that its page goes away is what is tested.
        let unknown = unsafe { Mmap::map(&file).unwrap() };
        file.set_len(0).unwrap();
        std::process::exit(i32::from(std::hint::black_box(unknown[0])));
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process_with_its_reason() {
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "env::fs_map::tests::second_process"])
            .output()
            .unwrap();

        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{said}");
        assert!(said.contains("latermq: stopped: SIGBUS at 0x0000"), "{said}");
    }
}
