//! A cursor for the index, to compare its entries with the log in the order of the log.

use std::{path::Path, sync::Arc};

use super::{
    super::{
        StoreError, StoreOptions,
        index::{Header, IndexEntry, Shape, is_index_name, key_hash},
    },
    Findings, Grade, io_error,
};
use crate::{
    env::{EntryKind, Env, File},
    model::{PhysicalOffset, Timestamp, names},
    record::RecordView,
};

/// Entries read at once.
const BLOCK_ENTRIES: u32 = 4_096;

/// The index files of a store, oldest first.
pub(super) struct IndexFiles {
    shape: Shape,
    /// All files have another length than the configuration gives them: they cannot be read.
    pub(super) is_of_another_shape: bool,
    files: Vec<(String, Arc<dyn File>)>,
    /// The file at hand, and the entry in it that comes next.
    current: usize,
    number: u32,
    header: Header,
    /// The newest entry so far of each slot of the file at hand.
    heads: Vec<u32>,
    block_from: u32,
    block: Vec<IndexEntry>,
    /// The last entry taken of the file at hand.
    last: Option<IndexEntry>,
    /// The position of the last entry taken of all.
    end: u64,
    sound: u64,
    /// Whether the next start writes anew what is looked at now.
    mends: bool,
    /// Faults of slots and header of a file whose entries are all read: the next record tells whether something was still to come.
    deferred: Vec<String>,
    stray: Faults,
    wrong: Faults,
    missing: Faults,
}

/// Faults of one kind: those that stay, and those that the next start makes good.
#[derive(Default)]
struct Faults([(u64, Option<String>); 2]);

impl Faults {
    fn add(&mut self, mends: bool, text: impl FnOnce() -> String) {
        let (count, first) = &mut self.0[usize::from(mends)];
        *count += 1;
        first.get_or_insert_with(text);
    }

    /// Count, first text and grade of each.
    fn each(&self) -> impl Iterator<Item = (u64, String, Grade)> {
        let faults = self.0.iter().zip([Grade::Damage, Grade::Mends]);
        faults.filter_map(|((count, first), grade)| Some((*count, first.clone()?, grade)))
    }
}

impl IndexFiles {
    pub(super) fn open(env: &Env, options: &StoreOptions, findings: &mut Findings) -> Result<Self, StoreError> {
        let directory = &*env.directory;
        let folder = Path::new("index");
        let shape = Shape { slots: options.index_slots, entries: options.index_entries };
        let mut files = Vec::new();
        let mut others = Vec::new();
        if options.index_enabled {
            let listed = directory.list(folder).map_err(|source| io_error(directory, "list", folder, source))?;
            for entry in listed {
                let path = folder.join(&entry.name);
                if entry.kind != EntryKind::File || !is_index_name(&entry.name) {
                    findings.note("files", path.display(), "is no file of the index, and is left alone");
                } else if entry.bytes == 0 {
                    findings.mends("index", path.display(), "is empty; the next start removes it");
                } else if entry.bytes == shape.file_bytes() {
                    let file = directory.open(&path).map_err(|source| io_error(directory, "open", &path, source))?;
                    files.push((path.display().to_string(), file));
                } else {
                    others.push((path, entry.bytes));
                }
            }
        }
        let is_of_another_shape = files.is_empty() && !others.is_empty();
        for (path, found) in others {
            let wanted = shape.file_bytes();
            if is_of_another_shape {
                // It is the configuration that is not theirs.
                let text = format!(
                    "has {found} bytes, where maxHashSlotNum and maxIndexNum say {wanted}: the index was not looked at; name the broker.conf of this store with -c"
                );
                findings.note("index", path.display(), &text);
                continue;
            }
            // A start that was killed while it cut the file leaves it short; the next one removes it.
            let grade = if found < wanted { Grade::Mends } else { Grade::Damage };
            findings.add(grade, "index", path.display(), &format!("has {found} bytes, but an index file has {wanted}"));
        }
        let mut index = Self {
            shape,
            is_of_another_shape,
            files,
            current: 0,
            number: 1,
            header: Header::default(),
            heads: Vec::new(),
            block_from: 0,
            block: Vec::new(),
            last: None,
            end: 0,
            sound: 0,
            mends: false,
            deferred: Vec::new(),
            stray: Faults::default(),
            wrong: Faults::default(),
            missing: Faults::default(),
        };
        index.begin_file();
        Ok(index)
    }

    fn wrong(&mut self, text: impl FnOnce() -> String) {
        self.wrong.add(self.mends, text);
    }

    fn report_deferred(&mut self) {
        for text in std::mem::take(&mut self.deferred) {
            self.wrong(|| text);
        }
    }

    fn begin_file(&mut self) {
        self.number = 1;
        self.block.clear();
        self.last = None;
        let Some((name, file)) = self.files.get(self.current).cloned() else { return };
        self.heads.clear();
        self.heads.resize(self.shape.slots as usize, 0);
        match Header::read(&*file) {
            Ok(header) if header.count <= self.shape.entries => self.header = header,
            Ok(header) => {
                let (count, entries) = (header.count, self.shape.entries);
                self.wrong(|| format!("{name} says that it has {count} entries, of {entries}"));
                self.header = Header { count: self.shape.entries, ..header };
            }
            Err(error) => {
                self.wrong(|| format!("{name} cannot be read: {error}"));
                self.header = Header { count: 1, ..Header::default() };
            }
        }
    }

    /// The entry that comes next.
    fn peek(&mut self) -> Option<IndexEntry> {
        loop {
            let (name, file) = self.files.get(self.current).cloned()?;
            if self.number >= self.header.count {
                self.end_file(&name, &*file);
                self.current += 1;
                self.begin_file();
                continue;
            }
            let index = self.number.checked_sub(self.block_from).map(|index| index as usize);
            if let Some(entry) = index.and_then(|index| self.block.get(index)) {
                return Some(*entry);
            }
            let count = BLOCK_ENTRIES.min(self.header.count - self.number);
            match self.shape.read_entries(&*file, self.number, count) {
                Ok(block) => {
                    self.block_from = self.number;
                    self.block = block;
                }
                Err(error) => {
                    self.wrong(|| format!("{name} cannot be read: {error}"));
                    self.number = self.header.count;
                }
            }
        }
    }

    /// Goes on behind an entry, and checks that it is chained to the one before it in its slot.
    fn advance(&mut self, entry: IndexEntry) {
        let slot = (entry.key_hash % self.shape.slots) as usize;
        let before = std::mem::replace(&mut self.heads[slot], self.number);
        if entry.previous != before {
            let (name, number) = (self.files[self.current].0.clone(), self.number);
            self.wrong(|| {
                format!("{name}: entry {number} follows {} in its slot, but should follow {before}", entry.previous)
            });
        }
        self.last = Some(entry);
        self.end = entry.position;
        self.number += 1;
    }

    /// Compares slots and header of a file with its entries.
    fn end_file(&mut self, name: &str, file: &dyn File) {
        let slots = self.shape.read_slots(file);
        let heads = std::mem::take(&mut self.heads);
        match slots {
            Ok(slots) => {
                if let Some(slot) = slots.iter().zip(&heads).position(|(found, wanted)| found != wanted) {
                    self.deferred.push(format!(
                        "{name}: slot {slot} begins with entry {}, but should with {}",
                        slots[slot], heads[slot]
                    ));
                }
            }
            Err(error) => self.deferred.push(format!("{name} cannot be read: {error}")),
        }
        let used = heads.iter().filter(|&&head| head > 0).count();
        self.heads = heads;
        let header = self.header;
        if header.used_slots as usize != used && header.count > 1 {
            self.deferred.push(format!("{name} says that {} slots are used, but {used} are", header.used_slots));
        }
        if let Some(last) = self.last.filter(|last| last.position != header.end_position) {
            self.deferred.push(format!(
                "{name} says that it ends at {}, but its last entry is of {}",
                header.end_position, last.position
            ));
        }
    }

    /// Compares a record with its entries.
    ///
    /// `is_gone` tells of a position whether retention or damage took what was there.
    pub(super) fn take(&mut self, record: &RecordView<'_>, mends: bool, is_gone: &dyn Fn(u64) -> bool) {
        let position = record.physical_offset();
        self.mends = mends;
        self.pass_below(position, is_gone);
        let properties = record.properties();
        let keys = properties.get(names::KEYS).into_iter().flat_map(|keys| keys.split(' '));
        let keys = properties.get(names::UNIQ_KEY).into_iter().chain(keys).filter(|key| !key.is_empty());
        let mut wanted: Vec<u32> = keys.map(|key| key_hash(record.topic(), key)).collect();
        if !wanted.is_empty() {
            self.report_deferred();
        }
        while let Some(entry) = self.peek().filter(|entry| entry.position == position.0) {
            match wanted.iter().position(|&hash| hash == entry.key_hash) {
                Some(at) => {
                    wanted.swap_remove(at);
                    self.check_time(entry, record.stored_at());
                    self.sound += 1;
                }
                None => self.wrong(|| format!("the record at {position} does not have the key of one of its entries")),
            }
            self.advance(entry);
        }
        if !wanted.is_empty() {
            self.missing.add(mends, || position.to_string());
        }
    }

    fn check_time(&mut self, entry: IndexEntry, stored_at: Timestamp) {
        let begin = self.header.begin_time;
        let seconds = if begin > 0 { stored_at.0.saturating_sub(begin).max(0) / 1000 } else { 0 };
        if i64::from(entry.seconds) != seconds {
            let (name, number) = (self.files[self.current].0.clone(), self.number);
            self.wrong(|| {
                format!("{name}: entry {number} is {} s behind the first, its record {seconds} s", entry.seconds)
            });
        }
    }

    /// Passes entries of positions that have no record.
    fn pass_below(&mut self, position: PhysicalOffset, is_gone: &dyn Fn(u64) -> bool) {
        while let Some(entry) = self.peek().filter(|entry| entry.position < position.0) {
            if !is_gone(entry.position) {
                let (name, number) = (self.files[self.current].0.clone(), self.number);
                self.stray.add(self.mends, || format!("{name}: entry {number} points at {}", entry.position));
            }
            self.advance(entry);
        }
    }

    /// How many files have entries below a position, and where they end; `None` if that cannot be told.
    pub(super) fn below(&mut self, position: PhysicalOffset) -> Option<(u64, u64)> {
        let is_ahead = self.peek().is_some_and(|entry| entry.position < position.0);
        let files = self.current + usize::from(self.number > 1);
        (!is_ahead).then_some((files as u64, self.end))
    }

    /// Reports what was found.
    pub(super) fn finish(
        &mut self,
        log_end: PhysicalOffset,
        is_gone: &dyn Fn(u64) -> bool,
        must_be: bool,
        unclean: bool,
        rebuilds: bool,
        findings: &mut Findings,
    ) {
        let graded = |grade| if rebuilds { Grade::Mends } else { grade };
        self.mends |= unclean;
        self.pass_below(log_end, is_gone);
        let behind = self.peek();
        self.report_deferred();
        if let Some(entry) = behind {
            let grade = if unclean { Grade::Mends } else { Grade::Damage };
            let name = self.files[self.current].0.clone();
            let text = format!("{name}: entry {} points at {}, behind the end of the log", self.number, entry.position);
            findings.add(grade, "index", "index", &text);
        }
        for (count, text, grade) in self.wrong.each() {
            findings.add(graded(grade), "index", "index", &format!("{text}; {count} faults in all"));
        }
        for (count, text, grade) in self.stray.each() {
            let text = format!("{text}, where no record begins that has its key; {count} entries in all");
            findings.add(graded(grade), "index", "index", &text);
        }
        for (count, position, grade) in self.missing.each() {
            let text = format!("does not have the keys of {count} records, the first at {position}");
            if self.files.is_empty() && !must_be {
                findings.note("index", "index", "is empty: no message is found by its key");
            } else {
                findings.add(graded(grade), "index", "index", &text);
            }
        }
    }

    pub(super) fn sound_entries(&self) -> u64 {
        self.sound
    }
}
