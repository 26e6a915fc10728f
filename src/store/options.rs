//! What can be set about a store. `config` fills it from `broker.conf`; the defaults are RocketMQ's.

use std::{path::PathBuf, time::Duration};

/// When an append is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushPolicy {
    /// As soon as the record is in the log file; a sync follows within an interval.
    #[default]
    Async,
    /// When the record is synced; one sync releases all that wait.
    Sync,
}

/// Options of a [`super::MessageStore`].
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Folder of the commit log, relative to the directory's root. Key `storePathCommitLog`.
    pub commit_log_folder: PathBuf,
    /// Length of a commit log segment in bytes. Key `mappedFileSizeCommitLog`.
    pub segment_bytes: u64,
    /// Length of a consume queue file in bytes, a multiple of 20. Key `mappedFileSizeConsumeQueue`.
    pub queue_file_bytes: u64,
    /// Slots of an index file. Key `maxHashSlotNum`.
    pub index_slots: u32,
    /// Entries of an index file, the unused entry 0 included. Key `maxIndexNum`.
    pub index_entries: u32,
    /// Whether messages are indexed by key. Key `messageIndexEnable`.
    pub index_enabled: bool,
    /// Largest body in bytes. Key `maxMessageSize`.
    pub body_bytes_max: usize,
    /// When an append is answered. Key `flushDiskType`.
    pub flush_policy: FlushPolicy,
    /// ASYNC_FLUSH: pause between two looks at what is to be synced. Key `flushIntervalCommitLog`.
    pub flush_interval: Duration,
    /// ASYNC_FLUSH: least un-synced bytes for a sync before the thorough interval is over. Key `flushCommitLogLeastPages` × 4096.
    pub flush_bytes_min: u64,
    /// ASYNC_FLUSH: longest time that a byte stays un-synced. Key `flushCommitLogThoroughInterval`.
    pub flush_thorough_interval: Duration,
    /// Longest distance in log bytes between two checkpoints of our own.
    pub checkpoint_bytes: u64,
    /// Longest time between two checkpoints while something was written. Key `flushConsumeQueueThoroughInterval`.
    pub checkpoint_interval: Duration,
    /// Age, by its file's last change, from which a segment may be deleted. Key `fileReservedTime`, in hours.
    pub reserved_time: Duration,
    /// Hours of the local day in which expired segments are deleted. Key `deleteWhen`.
    pub delete_when: Vec<u8>,
    /// Disk use in percent above which expired segments are deleted at any hour. Key `diskMaxUsedSpaceRatio`.
    pub disk_used_max_percent: u64,
    /// Disk use in percent above which the oldest segments are deleted whatever their age. Key `diskSpaceCleanForciblyRatio`.
    pub disk_clean_percent: u64,
    /// Disk use in percent above which sends are refused. Key `diskSpaceWarningLevelRatio`.
    pub disk_full_percent: u64,
    /// Pause between two runs of the retention. Key `cleanResourceInterval`.
    pub retention_interval: Duration,
    /// Most segments that one run deletes. Key `deleteFileBatchMax`.
    pub delete_batch_max: usize,
    /// Records of a pull or query answer: most bytes. Key `maxTransferBytesOnMessageInMemory`.
    pub pull_bytes_max: usize,
    /// Records of a pull answer: most records. Key `maxTransferCountOnMessageInMemory`.
    pub pull_count_max: usize,
    /// Records of a key query: most records. Key `maxMsgsNumBatch`.
    pub query_count_max: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            commit_log_folder: "commitlog".into(),
            segment_bytes: 1 << 30,
            queue_file_bytes: 6_000_000,
            index_slots: 5_000_000,
            index_entries: 20_000_000,
            index_enabled: true,
            body_bytes_max: 4 << 20,
            flush_policy: FlushPolicy::Async,
            flush_interval: Duration::from_millis(500),
            flush_bytes_min: 4 * 4096,
            flush_thorough_interval: Duration::from_secs(10),
            checkpoint_bytes: 64 << 20,
            checkpoint_interval: Duration::from_secs(60),
            reserved_time: Duration::from_secs(72 * 3600),
            delete_when: vec![4],
            disk_used_max_percent: 75,
            disk_clean_percent: 85,
            disk_full_percent: 90,
            retention_interval: Duration::from_secs(10),
            delete_batch_max: 10,
            pull_bytes_max: 262_144,
            pull_count_max: 32,
            query_count_max: 64,
        }
    }
}
