//! Two checkpoints: RocketMQ's, for RocketMQ; and our own, from which recovery starts.
//!
//! - `checkpoint` is RocketMQ's: 4096 bytes, five big-endian `i64` from byte 0 on, the rest zero, no checksum. See [`RocketmqCheckpoint`].
//! - `latermq.checkpoint` is ours: a JSON object `{"crc32":…,"checkpoint":{…}}`, where `crc32` is the CRC-32 of the inner object's text as
//!   this module writes it. It is kept with a `.bak`; an older checkpoint is as true as a newer one, only further back.
//!
//! Ours holds a copy of RocketMQ's. Apache RocketMQ changes its file as soon as it writes; the two then differ, and ours says nothing about
//! what Apache wrote: it is not believed. So that a crash between the writing of the two is not taken for that, ours also holds the copy
//! from before. What it says of the clock stays true all the same.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use tracing::warn;

use super::{
    Loaded, StateFile, StoreError,
    clock::{ClockJump, ClockJumps, ClockState},
    obstacle::clearing,
    room::is_full,
};
use crate::{
    env::{BootId, Directory},
    model::{PhysicalOffset, Timestamp},
};

/// Name of RocketMQ's checkpoint, in the root of the store.
pub(super) const ROCKETMQ_CHECKPOINT: &str = "checkpoint";
/// Name of our own checkpoint, in the root of the store.
pub(super) const OUR_CHECKPOINT: &str = "latermq.checkpoint";
/// Length of RocketMQ's checkpoint file.
const ROCKETMQ_BYTES: usize = 4096;

/// What RocketMQ's `checkpoint` says. All zero if nothing was synced yet.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.store.StoreCheckpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RocketmqCheckpoint {
    /// Bytes 0..8: store time of the newest record that is synced.
    pub(super) log_time: Timestamp,
    /// Bytes 8..16: store time of the newest record whose queue entry is synced.
    pub(super) queue_time: Timestamp,
    /// Bytes 16..24: end time of the newest index file that is full and synced.
    pub(super) index_time: Timestamp,
    /// Bytes 24..32: position a master had synced up to; used by replication.
    pub(super) master_flushed: i64,
    /// Bytes 32..40: position confirmed by replicas; used by replication.
    pub(super) confirmed: i64,
}

/// Our checkpoint: everything below `position` is durable in the log, in the queues and in the index, and told to the plugins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Checkpoint {
    /// The position P that recovery starts from.
    pub(super) position: PhysicalOffset,
    /// The first position that the log still had.
    pub(super) log_first: PhysicalOffset,
    /// The record that ends at `position`; none if the log was empty or its older part is gone.
    pub(super) last_record: Option<LastRecord>,
    /// How store time goes on.
    pub(super) clock: ClockState,
    /// What RocketMQ's checkpoint says from now on.
    pub(super) rocketmq: RocketmqCheckpoint,
    /// What there is besides the log below `position`.
    pub(super) derived: Derived,
    /// What each plugin saved, by its name.
    pub(super) plugins: BTreeMap<String, Vec<u8>>,
}

/// What the files say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundCheckpoint {
    pub(super) checkpoint: Checkpoint,
    /// RocketMQ's checkpoint was changed since: nothing is to be believed but the clock, and what can be compared with the log.
    pub(super) apache_wrote: bool,
}

impl FoundCheckpoint {
    /// The checkpoint, if it says where recovery may start.
    pub(super) fn believed(self) -> Option<Checkpoint> {
        (!self.apache_wrote).then_some(self.checkpoint)
    }
}

/// How much is derived from the log, to notice when a part of it was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Derived {
    /// Queues that have an entry.
    pub(super) queues: u64,
    /// The sum of their ends.
    pub(super) entries: u64,
    /// End position of the newest index file; 0 without an index.
    pub(super) index_end: u64,
    /// The sum of the first offsets that queues have files for.
    #[serde(default)]
    pub(super) first_entries: u64,
    /// Number of index files.
    #[serde(default)]
    pub(super) index_files: u64,
}

impl Derived {
    /// What no store counts: queues and index are being made anew.
    pub(super) const UNKNOWN: Self =
        Self { queues: u64::MAX, entries: 0, index_end: 0, first_entries: 0, index_files: 0 };
}

/// The record that ends at a checkpoint's position, to tell whether the log is still the one that was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastRecord {
    /// Its first byte.
    pub(super) position: u64,
    /// Its length in bytes.
    pub(super) bytes: u32,
    /// Its store time, in milliseconds since the epoch.
    pub(super) stored_at: i64,
    /// CRC-32 of its bytes.
    pub(super) crc32: u32,
}

/// The two checkpoint files of a store.
pub(super) struct CheckpointFiles {
    directory: Arc<dyn Directory>,
    rocketmq: PathBuf,
    ours: StateFile,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sealed {
    crc32: u32,
    checkpoint: Stored,
}

/// A [`Checkpoint`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    position: u64,
    #[serde(default)]
    log_first: u64,
    last_record: Option<LastRecord>,
    clock: StoredClock,
    rocketmq: [i64; 5],
    rocketmq_before: Option<[i64; 5]>,
    derived: Derived,
    plugins: BTreeMap<String, Hex>,
}

/// A [`ClockState`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredClock {
    boot_id: String,
    since_boot_ns: u64,
    store_time_ms: i64,
    jumps: Vec<ClockJump>,
}

/// Bytes, as hexadecimal digits in JSON.
struct Hex(Vec<u8>);

impl RocketmqCheckpoint {
    /// The 4096 bytes of the file.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ROCKETMQ_BYTES);
        for field in self.fields() {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes.resize(ROCKETMQ_BYTES, 0);
        bytes
    }

    /// Reads the bytes of the file; `None` if they are too few to hold the first three fields (older versions wrote no more).
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.chunks_exact(8).map(|field| field.try_into().map_or(0, i64::from_be_bytes));
        let times = [fields.next()?, fields.next()?, fields.next()?];
        Some(Self::from_fields([times[0], times[1], times[2], fields.next().unwrap_or(0), fields.next().unwrap_or(0)]))
    }

    fn fields(self) -> [i64; 5] {
        [self.log_time.0, self.queue_time.0, self.index_time.0, self.master_flushed, self.confirmed]
    }

    fn from_fields([log_time, queue_time, index_time, master_flushed, confirmed]: [i64; 5]) -> Self {
        Self {
            log_time: Timestamp(log_time),
            queue_time: Timestamp(queue_time),
            index_time: Timestamp(index_time),
            master_flushed,
            confirmed,
        }
    }
}

impl CheckpointFiles {
    /// The checkpoint files in the root of `directory`.
    pub(super) fn new(directory: Arc<dyn Directory>) -> Self {
        let ours = StateFile::new(Arc::clone(&directory), OUR_CHECKPOINT.into());
        Self { directory, rocketmq: ROCKETMQ_CHECKPOINT.into(), ours }
    }

    /// What RocketMQ's checkpoint says; `None`, with a warning unless it is simply not there, if it cannot be read.
    pub(super) fn load_rocketmq(&self) -> Option<RocketmqCheckpoint> {
        let path = self.directory.display(&self.rocketmq);
        match self.directory.read(&self.rocketmq) {
            Ok(None) => None,
            Ok(Some(bytes)) => {
                let found = RocketmqCheckpoint::from_bytes(&bytes);
                if found.is_none() {
                    warn!(path, bytes = bytes.len(), "checkpoint too short, it is not used");
                }
                found
            }
            Err(error) => {
                warn!(path, %error, "checkpoint cannot be read, it is not used");
                None
            }
        }
    }

    /// Our checkpoint, or the one before if the newest cannot be read; `None`, with a warning unless there is none, if neither can.
    pub(super) fn load(&self) -> Option<FoundCheckpoint> {
        let stored = match self.ours.load(parse) {
            Loaded::Main(stored) | Loaded::Backup(stored) => stored,
            Loaded::Absent => return None,
            Loaded::Unreadable(_) => {
                warn!(
                    path = self.ours.display(),
                    "steps of the wall clock before this start are not known: what waits may be early by as much"
                );
                return None;
            }
        };
        let rocketmq = self.load_rocketmq().map(RocketmqCheckpoint::fields);
        let apache_wrote = rocketmq != Some(stored.rocketmq) && rocketmq != stored.rocketmq_before;
        if apache_wrote {
            warn!(
                path = self.ours.display(),
                "RocketMQ's checkpoint changed since ours was written, ours is not used: the whole log is scanned"
            );
        }
        let clock = ClockState {
            boot_id: BootId(stored.clock.boot_id),
            since_boot: Duration::from_nanos(stored.clock.since_boot_ns),
            store_time: Timestamp(stored.clock.store_time_ms),
            jumps: ClockJumps::new(&stored.clock.jumps),
        };
        let checkpoint = Checkpoint {
            position: PhysicalOffset(stored.position),
            log_first: PhysicalOffset(stored.log_first),
            last_record: stored.last_record,
            clock,
            rocketmq: RocketmqCheckpoint::from_fields(stored.rocketmq),
            derived: stored.derived,
            plugins: stored.plugins.into_iter().map(|(name, blob)| (name, blob.0)).collect(),
        };
        Some(FoundCheckpoint { checkpoint, apache_wrote })
    }

    /// Looks at our checkpoint and at the one before it: whether each is there, or what is wrong with it.
    pub(super) fn inspect(&self) -> [Result<bool, String>; 2] {
        self.ours.inspect(parse).map(|found| found.map(|stored| stored.is_some()))
    }

    /// Whether there is no checkpoint of ours, and no earlier one.
    pub(super) fn are_absent(&self) -> bool {
        self.inspect() == [Ok(false), Ok(false)]
    }

    /// Writes both checkpoints, ours first; durable on return.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the checkpoints from before are then still good.
    pub(super) fn save(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let before = self.load_rocketmq();
        self.save_ours(checkpoint, before)?;
        if before != Some(checkpoint.rocketmq) {
            let at = |source| StoreError::Io { action: "write", path: self.directory.display(&self.rocketmq), source };
            self.save_rocketmq(checkpoint.rocketmq).map_err(at)?;
        }
        Ok(())
    }

    /// Writes our checkpoint again where only the clock is new; durable on return.
    ///
    /// # Errors
    /// [`StoreError::Io`]; whether the old or the new one is in place is then not known.
    pub(super) fn save_clock(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        self.save_ours(checkpoint, self.load_rocketmq())
    }

    fn save_ours(&self, checkpoint: &Checkpoint, before: Option<RocketmqCheckpoint>) -> Result<(), StoreError> {
        let clock = &checkpoint.clock;
        let stored = Stored {
            position: checkpoint.position.0,
            log_first: checkpoint.log_first.0,
            last_record: checkpoint.last_record,
            clock: StoredClock {
                boot_id: clock.boot_id.0.clone(),
                since_boot_ns: u64::try_from(clock.since_boot.as_nanos()).unwrap_or(u64::MAX),
                store_time_ms: clock.store_time.0,
                jumps: clock.jumps.as_slice().to_vec(),
            },
            rocketmq: checkpoint.rocketmq.fields(),
            rocketmq_before: before.map(RocketmqCheckpoint::fields),
            derived: checkpoint.derived,
            plugins: checkpoint.plugins.iter().map(|(name, blob)| (name.clone(), Hex(blob.clone()))).collect(),
        };
        let written = seal(stored).map_err(io::Error::other).and_then(|text| self.ours.save(&text));
        written.map_err(|source| StoreError::Io { action: "write", path: self.ours.display(), source })
    }

    fn save_rocketmq(&self, checkpoint: RocketmqCheckpoint) -> io::Result<()> {
        let aside = self.rocketmq.with_extension("tmp");
        let written = clearing(&*self.directory, &[&aside, &self.rocketmq], || {
            self.directory.write(&aside, &checkpoint.to_bytes())?;
            self.directory.rename(&aside, &self.rocketmq)
        });
        match written {
            // On a full disk it is written over in place. If a crash leaves half of it, ours is not believed, and the whole log is scanned.
            Err(error) if is_full(&error) => {
                let _ = self.directory.remove(&aside);
                return self.directory.write(&self.rocketmq, &checkpoint.to_bytes());
            }
            written => written?,
        }
        self.directory.sync_folder(Path::new(""))
    }
}

fn seal(checkpoint: Stored) -> serde_json::Result<String> {
    let crc32 = crc32fast::hash(serde_json::to_string(&checkpoint)?.as_bytes());
    serde_json::to_string(&Sealed { crc32, checkpoint })
}

fn parse(text: &str) -> Result<Stored, String> {
    let sealed: Sealed = serde_json::from_str(text).map_err(|error| format!("is not a checkpoint: {error}"))?;
    let inner = serde_json::to_string(&sealed.checkpoint).map_err(|error| error.to_string())?;
    let found = crc32fast::hash(inner.as_bytes());
    if found != sealed.crc32 {
        return Err(format!("has the checksum {found}, but says {}", sealed.crc32));
    }
    Ok(sealed.checkpoint)
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(D::Error::custom("an odd number of hexadecimal digits"));
        }
        let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
        bytes.collect::<Option<_>>().map(Self).ok_or_else(|| D::Error::custom("not a hexadecimal digit"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::env::MemoryDirectory;

    fn rocketmq(time: i64) -> RocketmqCheckpoint {
        RocketmqCheckpoint {
            log_time: Timestamp(time),
            queue_time: Timestamp(time - 1),
            index_time: Timestamp(2),
            master_flushed: 3,
            confirmed: -4,
        }
    }

    fn checkpoint(position: u64) -> Checkpoint {
        Checkpoint {
            position: PhysicalOffset(position),
            log_first: PhysicalOffset(position / 2),
            last_record: Some(LastRecord { position: position - 145, bytes: 145, stored_at: 7, crc32: u32::MAX }),
            clock: ClockState {
                boot_id: BootId("5e4d0c1a".to_owned()),
                since_boot: Duration::from_nanos(86_400_000_000_001),
                store_time: Timestamp(1_700_000_000_123),
                jumps: ClockJumps::new(&[
                    ClockJump { below_ms: 1_600_000_000_000, by_ms: 2_000, end: Some(position) },
                    ClockJump { below_ms: 1_700_000_000_000, by_ms: 3_600_000, end: None },
                ]),
            },
            rocketmq: rocketmq(i64::try_from(position).unwrap()),
            derived: Derived { queues: 2, entries: 7, index_end: position, first_entries: 3, index_files: 1 },
            plugins: BTreeMap::from([("levels".to_owned(), (0..=255).collect()), ("none".to_owned(), Vec::new())]),
        }
    }

    fn files(directory: &MemoryDirectory) -> CheckpointFiles {
        CheckpointFiles::new(Arc::new(directory.clone()))
    }

    /// What is believed of what was saved.
    fn load(directory: &MemoryDirectory) -> Option<Checkpoint> {
        files(directory).load().and_then(FoundCheckpoint::believed)
    }

    fn saved(positions: &[u64]) -> MemoryDirectory {
        let directory = MemoryDirectory::new();
        for &position in positions {
            files(&directory).save(&checkpoint(position)).unwrap();
        }
        directory
    }

    fn bytes(directory: &MemoryDirectory, name: &str) -> Vec<u8> {
        directory.read(Path::new(name)).unwrap().unwrap()
    }

    #[test]
    fn store_22_the_checkpoint_of_rocketmq_is_4096_bytes_with_five_numbers() {
        let directory = saved(&[1000]);

        let found = bytes(&directory, "checkpoint");

        assert_eq!(found.len(), 4096);
        let numbers: Vec<i64> = found[..40].chunks(8).map(|n| i64::from_be_bytes(n.try_into().unwrap())).collect();
        assert_eq!(numbers, [1000, 999, 2, 3, -4]);
        assert!(found[40..].iter().all(|&byte| byte == 0));
        assert_eq!(files(&directory).load_rocketmq(), Some(rocketmq(1000)));
    }

    #[test]
    fn a_checkpoint_is_loaded_as_it_was_saved() {
        assert_eq!(load(&saved(&[1000, 2000])), Some(checkpoint(2000)));
        assert_eq!(load(&MemoryDirectory::new()), None);
    }

    #[test]
    fn a_damaged_checkpoint_gives_way_to_nothing_that_was_not_saved() {
        let good = bytes(&saved(&[1000]), OUR_CHECKPOINT);
        for at in 0..good.len() {
            let directory = saved(&[1000]);
            let mut bad = good.clone();
            bad[at] ^= 1;
            directory.write(Path::new(OUR_CHECKPOINT), &bad).unwrap();
            assert_eq!(load(&directory), None, "byte {at}");
            directory.write(Path::new(OUR_CHECKPOINT), &good[..at]).unwrap();
            assert_eq!(load(&directory), None, "cut at {at}");
        }
    }

    #[test]
    fn store_41_a_checkpoint_is_not_believed_once_apache_changed_its_own() {
        let directory = saved(&[1000, 2000]);
        directory.write(Path::new(ROCKETMQ_CHECKPOINT), &rocketmq(3000).to_bytes()).unwrap();
        assert_eq!(load(&directory), None);

        directory.remove(Path::new(ROCKETMQ_CHECKPOINT)).unwrap();
        assert_eq!(load(&directory), None);
    }

    #[test]
    fn the_clock_of_a_checkpoint_is_believed_though_apache_changed_its_own() {
        let directory = saved(&[1000, 2000]);
        directory.write(Path::new(ROCKETMQ_CHECKPOINT), &rocketmq(3000).to_bytes()).unwrap();

        let found = files(&directory).load().unwrap();

        assert!(found.apache_wrote);
        assert_eq!(found.checkpoint.clock, checkpoint(2000).clock);
    }

    #[test]
    fn a_short_checkpoint_of_rocketmq_is_not_used() {
        let directory = saved(&[1000]);
        directory.write(Path::new(ROCKETMQ_CHECKPOINT), &[1; 23]).unwrap();
        assert_eq!(files(&directory).load_rocketmq(), None);
        directory.write(Path::new(ROCKETMQ_CHECKPOINT), &[0; 24]).unwrap();
        assert_eq!(files(&directory).load_rocketmq(), Some(RocketmqCheckpoint::default()));
    }

    #[test]
    fn a_save_cut_at_any_step_leaves_a_checkpoint_that_is_believed() {
        for before in [&[][..], &[1000], &[1000, 2000]] {
            let undisturbed = saved(before);
            let first = undisturbed.steps();
            files(&undisturbed).save(&checkpoint(5000)).unwrap();
            for step in 1..=undisturbed.steps() - first {
                let directory = saved(before);
                directory.crash_at(first + step);
                assert!(files(&directory).save(&checkpoint(5000)).is_err());

                for left in (0..40).map(|seed| directory.crash(seed)).chain([directory.kill()]) {
                    let found = load(&left).map(|found| found.position.0);
                    let allowed = [before.last().copied(), Some(5000)];
                    assert!(allowed.contains(&found), "step {step} after {before:?}: {found:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_checkpoint(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let directory = saved(&[1000]);
            directory.write(Path::new(OUR_CHECKPOINT), &bytes).unwrap();
            prop_assert_eq!(load(&directory), None);
        }

        #[test]
        fn plugins_get_their_bytes_back(blob in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut wanted = checkpoint(1000);
            wanted.plugins.insert("blob".to_owned(), blob);
            let directory = MemoryDirectory::new();
            files(&directory).save(&wanted).unwrap();
            prop_assert_eq!(load(&directory), Some(wanted));
        }
    }
}
