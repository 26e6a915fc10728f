//! The bytes of one file in memory, and which of them a power cut could take back.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
};

use fastrand::Rng;

/// What the kernel keeps or loses as one.
pub(super) const PAGE_BYTES: usize = 4096;
/// What the disk writes as one: a torn page is made of old and new sectors.
const SECTOR_BYTES: usize = 512;

type Page = Box<[u8; PAGE_BYTES]>;

/// The bytes of one file. Pages that were never written are zero and take no room.
#[derive(Clone, Default)]
pub(super) struct Content {
    bytes: u64,
    /// The length that is durable, while it is another.
    durable_bytes: Option<u64>,
    pages: BTreeMap<u64, Page>,
    /// The pages that were written since the last sync.
    unsynced: BTreeMap<u64, Unsynced>,
    /// So many bytes from the start have their blocks.
    reserved_bytes: u64,
    /// Pages that the disk cannot read until they are written again.
    unreadable: BTreeSet<u64>,
    pub(super) modified_ms: i64,
}

#[derive(Clone)]
struct Unsynced {
    /// What is durable of the page; `None` is zeros.
    durable: Option<Page>,
    /// A sync of it has failed: the kernel takes it for clean and no later sync writes it, unless it is written again.
    given_up: bool,
}

impl Content {
    /// A new file whose length is not durable yet.
    pub(super) fn new(bytes: u64, reserved: bool) -> Self {
        let reserved_bytes = if reserved { bytes } else { 0 };
        Self { bytes, durable_bytes: (bytes > 0).then_some(0), reserved_bytes, ..Self::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of the disk it takes.
    pub(super) fn used_bytes(&self) -> u64 {
        let reserved_pages = self.reserved_bytes.div_ceil(PAGE_BYTES as u64);
        let others = self.pages.range(reserved_pages..).count() as u64;
        (reserved_pages + others) * PAGE_BYTES as u64
    }

    /// How much more of the disk it takes once `range` is written.
    pub(super) fn missing_bytes(&self, range: &Range<u64>) -> u64 {
        let reserved_pages = self.reserved_bytes.div_ceil(PAGE_BYTES as u64);
        let missing = pages_of(range).filter(|page| *page >= reserved_pages && !self.pages.contains_key(page));
        missing.count() as u64 * PAGE_BYTES as u64
    }

    pub(super) fn read(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        let pages = pages_of(&(position..position + into.len() as u64));
        if let Some(page) = self.unreadable.range(pages).next() {
            return Err(io::Error::other(format!("page {page} cannot be read")));
        }
        let mut done = 0;
        while done < into.len() {
            let (page, at, bytes) = piece(position + done as u64, into.len() - done);
            let part = &mut into[done..done + bytes];
            match self.pages.get(&page) {
                Some(page) => part.copy_from_slice(&page[at..at + bytes]),
                None => part.fill(0),
            }
            done += bytes;
        }
        Ok(())
    }

    /// Damages bytes where they lie, on the disk as in memory: each is combined with `mask` by exclusive or.
    pub(super) fn damage(&mut self, range: Range<u64>, mask: u8) {
        for position in range {
            let (page, at, _) = piece(position, 1);
            self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES]))[at] ^= mask;
            if let Some(unsynced) = self.unsynced.get_mut(&page) {
                unsynced.durable.get_or_insert_with(|| Box::new([0; PAGE_BYTES]))[at] ^= mask;
            }
        }
    }

    /// Lets the disk be unable to read the pages of a range, until they are written again.
    pub(super) fn make_unreadable(&mut self, range: &Range<u64>) {
        self.unreadable.extend(pages_of(range));
    }

    /// Lets the disk read the pages of a range again.
    pub(super) fn make_readable(&mut self, range: &Range<u64>) {
        let pages = pages_of(range);
        self.unreadable.retain(|page| !pages.contains(page));
    }

    pub(super) fn write(&mut self, position: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, at, part) = piece(position + done as u64, bytes.len() - done);
            self.page_to_write(page)[at..at + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
        }
    }

    pub(super) fn zero(&mut self, range: Range<u64>) {
        let mut position = range.start;
        while position < range.end {
            let (page, at, bytes) = piece(position, usize::try_from(range.end - position).unwrap_or(usize::MAX));
            // A page that is zero already, on the disk too, stays as it is.
            if self.pages.contains_key(&page) || self.unsynced.contains_key(&page) {
                self.page_to_write(page)[at..at + bytes].fill(0);
            }
            position += bytes as u64;
        }
    }

    pub(super) fn set_bytes(&mut self, bytes: u64, reserve: bool) {
        if bytes < self.bytes {
            // What is cut is gone: a file that grows again brings zeros.
            self.zero(bytes..self.bytes);
        }
        if self.durable_bytes.is_none() {
            self.durable_bytes = Some(self.bytes);
        }
        self.reserved_bytes = if reserve { bytes } else { self.reserved_bytes.min(bytes) };
        self.bytes = bytes;
    }

    /// All that is written becomes durable, but for what an earlier failed sync gave up.
    pub(super) fn sync(&mut self) {
        self.durable_bytes = None;
        self.unsynced.retain(|_, page| page.given_up);
    }

    /// A sync fails: what was written is still read, but no later sync makes it durable.
    pub(super) fn fail_sync(&mut self) {
        for page in self.unsynced.values_mut() {
            page.given_up = true;
        }
    }

    /// What a power cut could leave: the durable bytes and any choice of those that were not.
    pub(super) fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let bytes = self.durable_bytes.filter(|_| rng.bool()).unwrap_or(self.bytes);
        let mut pages = self.pages.clone();
        let choice = Choice::draw(self.unsynced.len(), rng);
        for (index, (page, unsynced)) in self.unsynced.iter().enumerate() {
            let left = match choice.fate(index, rng) {
                Fate::Kept => continue,
                Fate::Lost => unsynced.durable.clone(),
                Fate::Torn => Some(torn(unsynced.durable.as_ref(), pages.get(page), rng)),
            };
            match left {
                Some(left) => pages.insert(*page, left),
                None => pages.remove(page),
            };
        }
        let mut left = Self {
            bytes: self.bytes.max(bytes),
            pages,
            reserved_bytes: self.reserved_bytes.min(bytes),
            unreadable: self.unreadable.clone(),
            modified_ms: self.modified_ms,
            ..Self::default()
        };
        left.set_bytes(bytes, false);
        left.pages =
            left.pages.split_off(&0).into_iter().filter(|(page, _)| page * (PAGE_BYTES as u64) < bytes).collect();
        left.sync();
        left
    }

    fn page_to_write(&mut self, page: u64) -> &mut [u8; PAGE_BYTES] {
        let unsynced = self
            .unsynced
            .entry(page)
            .or_insert_with(|| Unsynced { durable: self.pages.get(&page).cloned(), given_up: false });
        unsynced.given_up = false;
        self.unreadable.remove(&page);
        self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES]))
    }
}

/// Which of several unsynced things a power cut keeps. A plain coin for each would hardly ever show the common cases.
pub(super) enum Choice {
    All,
    None,
    /// Those before this one, and perhaps a part of it.
    Before(usize),
    /// A coin for each.
    Any,
}

pub(super) enum Fate {
    Kept,
    Lost,
    Torn,
}

impl Choice {
    pub(super) fn draw(count: usize, rng: &mut Rng) -> Self {
        match rng.u8(..5) {
            0 => Self::All,
            1 => Self::None,
            2 => Self::Before(rng.usize(..=count)),
            _ => Self::Any,
        }
    }

    pub(super) fn fate(&self, index: usize, rng: &mut Rng) -> Fate {
        match *self {
            Self::All => Fate::Kept,
            Self::None => Fate::Lost,
            Self::Before(end) if index < end => Fate::Kept,
            Self::Before(end) if index == end => Fate::Torn,
            Self::Before(_) => Fate::Lost,
            Self::Any => match rng.u8(..5) {
                0 | 1 => Fate::Kept,
                2 | 3 => Fate::Lost,
                _ => Fate::Torn,
            },
        }
    }
}

/// A page of which some sectors reached the disk.
fn torn(durable: Option<&Page>, current: Option<&Page>, rng: &mut Rng) -> Page {
    let mut page = durable.cloned().unwrap_or_else(|| Box::new([0; PAGE_BYTES]));
    for at in (0..PAGE_BYTES).step_by(SECTOR_BYTES) {
        if rng.bool() {
            let sector = &mut page[at..at + SECTOR_BYTES];
            match current {
                Some(current) => sector.copy_from_slice(&current[at..at + SECTOR_BYTES]),
                None => sector.fill(0),
            }
        }
    }
    page
}

/// The page a position lies in, where in it, and how many of `bytes` lie in it.
fn piece(position: u64, bytes: usize) -> (u64, usize, usize) {
    let page_bytes = PAGE_BYTES as u64;
    let at = usize::try_from(position % page_bytes).unwrap_or(0);
    (position / page_bytes, at, bytes.min(PAGE_BYTES - at))
}

fn pages_of(range: &Range<u64>) -> Range<u64> {
    let page_bytes = PAGE_BYTES as u64;
    if range.is_empty() { 0..0 } else { range.start / page_bytes..range.end.div_ceil(page_bytes) }
}
