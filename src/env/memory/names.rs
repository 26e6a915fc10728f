//! The names of a folder tree in memory, and which changes of them a power cut could take back.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fastrand::Rng;

use super::content::{Choice, Content, Fate};

/// A file, shared by its names and its open handles.
pub(super) type Shared = Arc<Mutex<Content>>;

pub(super) fn content(file: &Shared) -> MutexGuard<'_, Content> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
pub(super) enum Node {
    Folder,
    File(Shared),
}

type Tree = BTreeMap<PathBuf, Node>;

/// A change of names that is not durable yet.
#[derive(Clone)]
enum Change {
    Create {
        path: PathBuf,
        file: Shared,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        file: Shared,
    },
    /// With all that is below it.
    RenameFolder {
        from: PathBuf,
        to: PathBuf,
    },
    /// With all that is below it.
    Remove {
        path: PathBuf,
    },
}

impl Change {
    /// Whether a sync of `folder` makes it durable.
    fn is_in(&self, folder: &Path) -> bool {
        let within = |path: &Path| path.parent() == Some(folder);
        match self {
            Self::Create { path, .. } | Self::Remove { path } => within(path),
            Self::Rename { from, to, .. } | Self::RenameFolder { from, to } => within(from) || within(to),
        }
    }

    /// Whether it is about something below `folder`.
    fn is_below(&self, folder: &Path) -> bool {
        match self {
            Self::Create { path, .. } | Self::Remove { path } => path.starts_with(folder),
            Self::Rename { to, .. } | Self::RenameFolder { to, .. } => to.starts_with(folder),
        }
    }

    fn apply(&self, tree: &mut Tree) {
        match self {
            Self::Create { path, file } => put(tree, path, file),
            Self::Rename { from, to, file } => {
                tree.remove(from);
                put(tree, to, file);
            }
            Self::RenameFolder { from, to } => {
                let moved: Vec<PathBuf> = tree.keys().filter(|path| path.starts_with(from)).cloned().collect();
                for path in moved {
                    let Some(node) = tree.remove(&path) else { continue };
                    let below = path.strip_prefix(from).unwrap_or(Path::new(""));
                    let name = if below.as_os_str().is_empty() { to.clone() } else { to.join(below) };
                    tree.insert(name, node);
                }
            }
            Self::Remove { path } => tree.retain(|found, _| !found.starts_with(path)),
        }
    }
}

/// Names, as they are read now and as a power cut would leave them. Paths are normal: no `.`, no `..`.
#[derive(Clone, Default)]
pub(super) struct Names {
    current: Tree,
    durable: Tree,
    /// In the order they were made.
    changes: Vec<Change>,
}

impl Names {
    pub(super) fn node(&self, path: &Path) -> Option<Node> {
        if is_root(path) { Some(Node::Folder) } else { self.current.get(path).cloned() }
    }

    /// The file of this name.
    pub(super) fn file(&self, path: &Path) -> io::Result<Shared> {
        match self.node(path) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Folder) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The entries of a folder, sorted by name.
    pub(super) fn entries<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = (&'a Path, &'a Node)> {
        self.current
            .range(folder.to_path_buf()..)
            .take_while(move |(path, _)| path.starts_with(folder))
            .filter(move |(path, _)| path.parent() == Some(folder))
            .map(|(path, node)| (path.as_path(), node))
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Shared> {
        self.current.values().filter_map(|node| match node {
            Node::File(file) => Some(file),
            Node::Folder => None,
        })
    }

    /// Creates the folder and those above it, durably.
    pub(super) fn create_folder(&mut self, folder: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        for folder in folder.ancestors() {
            match self.node(folder) {
                Some(Node::Folder) => break,
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => missing.push(folder),
            }
        }
        for folder in missing.into_iter().rev() {
            if let Some(above) = folder.parent() {
                self.sync_folder(above)?;
            }
            self.current.insert(folder.to_path_buf(), Node::Folder);
            self.durable.insert(folder.to_path_buf(), Node::Folder);
        }
        Ok(())
    }

    pub(super) fn create(&mut self, path: &Path, file: Content) -> io::Result<Shared> {
        self.check_folder_of(path)?;
        if self.node(path).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(Mutex::new(file));
        self.change(Change::Create { path: path.to_path_buf(), file: file.clone() });
        Ok(file)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if matches!(self.node(from), Some(Node::Folder)) {
            self.check_folder_of(to)?;
            if self.node(to).is_some() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            self.change(Change::RenameFolder { from: from.to_path_buf(), to: to.to_path_buf() });
            return Ok(());
        }
        let file = self.file(from)?;
        self.check_folder_of(to)?;
        if matches!(self.node(to), Some(Node::Folder)) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.change(Change::Rename { from: from.to_path_buf(), to: to.to_path_buf(), file });
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) {
        if self.node(path).is_some() {
            self.change(Change::Remove { path: path.to_path_buf() });
        }
    }

    pub(super) fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        match self.node(folder) {
            Some(Node::Folder) => {}
            Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        let mut left: Vec<Change> = Vec::new();
        for change in self.changes.drain(..) {
            if !change.is_in(folder) {
                left.push(change);
                continue;
            }
            change.apply(&mut self.durable);
            if let Change::Remove { path } = &change {
                left.retain(|earlier| !earlier.is_below(path));
            }
        }
        self.changes = left;
        Ok(())
    }

    /// The same tree with files of its own.
    pub(super) fn copy(&self) -> Self {
        let mut copies = Copies { made: HashMap::new(), copy: Content::clone };
        Self {
            current: copies.tree(&self.current),
            durable: copies.tree(&self.durable),
            changes: self
                .changes
                .iter()
                .map(|change| match change {
                    Change::Create { path, file } => Change::Create { path: path.clone(), file: copies.file(file) },
                    Change::Rename { from, to, file } => {
                        Change::Rename { from: from.clone(), to: to.clone(), file: copies.file(file) }
                    }
                    Change::RenameFolder { from, to } => Change::RenameFolder { from: from.clone(), to: to.clone() },
                    Change::Remove { path } => Change::Remove { path: path.clone() },
                })
                .collect(),
        }
    }

    /// What a power cut could leave: the durable names and any choice of the changes that were not.
    pub(super) fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let mut left = self.durable.clone();
        let choice = Choice::draw(self.changes.len(), rng);
        for (index, change) in self.changes.iter().enumerate() {
            // A change of names is never torn; what would be is kept or lost.
            let kept = match choice.fate(index, rng) {
                Fate::Kept => true,
                Fate::Lost => false,
                Fate::Torn => rng.bool(),
            };
            if kept {
                change.apply(&mut left);
            }
        }
        let mut copies = Copies { made: HashMap::new(), copy: |content: &Content| content.after_power_cut(rng) };
        let current = copies.tree(&left);
        Self { durable: current.clone(), current, changes: Vec::new() }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.changes.push(change);
    }

    fn check_folder_of(&self, path: &Path) -> io::Result<()> {
        match path.parent().and_then(|folder| self.node(folder)) {
            Some(Node::Folder) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Copies files so that two names of one file stay names of one file.
struct Copies<F> {
    made: HashMap<*const Mutex<Content>, Shared>,
    copy: F,
}

impl<F: FnMut(&Content) -> Content> Copies<F> {
    fn file(&mut self, file: &Shared) -> Shared {
        let copy = &mut self.copy;
        let made = self.made.entry(Arc::as_ptr(file));
        made.or_insert_with(|| Arc::new(Mutex::new(copy(&content(file))))).clone()
    }

    fn tree(&mut self, tree: &Tree) -> Tree {
        let copy = |(path, node): (&PathBuf, &Node)| {
            let node = match node {
                Node::Folder => Node::Folder,
                Node::File(file) => Node::File(self.file(file)),
            };
            (path.clone(), node)
        };
        tree.iter().map(copy).collect()
    }
}

/// Gives a file a name, unless the folder of that name is not there.
fn put(tree: &mut Tree, path: &Path, file: &Shared) {
    let folder = path.parent().unwrap_or(path);
    if is_root(folder) || tree.contains_key(folder) {
        tree.insert(path.to_path_buf(), Node::File(file.clone()));
    }
}

/// Whether it is the folder all relative, or all absolute, paths begin in.
fn is_root(path: &Path) -> bool {
    path.as_os_str().is_empty() || path == Path::new("/")
}
