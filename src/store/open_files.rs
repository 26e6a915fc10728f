//! The files that are kept open for the next read or write, up to a limit.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::env::File;

/// Handles of files, the least recently used closed first. A handle that is in use stays open until it is dropped.
pub(super) struct OpenFiles {
    files_max: usize,
    owners: AtomicU64,
    open: Mutex<Open>,
}

/// Names one life of a folder: a file that is removed and created again belongs to another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner(pub(super) u64);

#[derive(Default)]
struct Open {
    files: HashMap<(Owner, u64), Kept, foldhash::fast::RandomState>,
    uses: u64,
}

struct Kept {
    file: Arc<dyn File>,
    used: u64,
}

impl OpenFiles {
    /// Keeps at most `files_max` files open.
    pub(super) fn new(files_max: usize) -> Self {
        Self { files_max: files_max.max(1), owners: AtomicU64::new(0), open: Mutex::default() }
    }

    /// A name that was not given before.
    pub(super) fn owner(&self) -> Owner {
        Owner(self.owners.fetch_add(1, Ordering::Relaxed))
    }

    /// The file `number` of `owner`, opened by `open` if it is not kept.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) fn get(
        &self,
        owner: Owner,
        number: u64,
        open: impl FnOnce() -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        {
            let mut kept = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            kept.uses += 1;
            let used = kept.uses;
            if let Some(found) = kept.files.get_mut(&(owner, number)) {
                found.used = used;
                return Ok(Arc::clone(&found.file));
            }
        }
        let file = open()?;
        self.keep(owner, number, &file);
        Ok(file)
    }

    /// Keeps a file that was just created.
    pub(super) fn keep(&self, owner: Owner, number: u64, file: &Arc<dyn File>) {
        let mut kept = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let used = kept.uses;
        if kept.files.len() >= self.files_max {
            // A pass over the table per opened file: cheaper than the opening itself.
            let oldest = kept.files.iter().min_by_key(|(_, kept)| kept.used).map(|(&key, _)| key);
            if let Some(oldest) = oldest {
                kept.files.remove(&oldest);
            }
        }
        kept.files.insert((owner, number), Kept { file: Arc::clone(file), used });
    }

    /// Forgets a file that is removed.
    pub(super) fn forget(&self, owner: Owner, number: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).files.remove(&(owner, number));
    }
}
