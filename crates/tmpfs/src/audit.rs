//! Counts and links, recounted on a quiet file system.

use crate::backend::{Backend, FileData};
use crate::inode::{Content, Inode};
use crate::node::Node;
use crate::tmpfs::{Tmpfs, Usage};
use quire_sync::atomic::Ordering;

/// What an audit has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// An inode has other links than it counts.
    Links {
        /// Its number.
        inode: u64,
        /// What it counts.
        counted: u64,
        /// What there are.
        found: u64,
    },
    /// A directory has other entries than it counts, or its trees differ.
    Entries {
        /// Its number.
        inode: u64,
        /// What it counts.
        counted: u64,
        /// What there are.
        found: u64,
    },
    /// A directory does not lead to the one that it is in.
    Parent {
        /// Its number.
        inode: u64,
    },
    /// More is found than is counted as in use.
    Usage {
        /// What is counted.
        counted: Usage,
        /// What there is.
        found: Usage,
    },
}

/// What takes of the space for inodes, in bytes.
const INODE_BYTES: u64 = 1024;
/// Set where a file was looked at that may have more names.
const LOOKED_AT: u64 = 1 << 63;

/// Recounts a file system on which no call is made meanwhile: links, entries, what is in use. Returns what is
/// in the tree; what has only handles or mappings is in use beside that. `report` is called with what does
/// not fit. Two audits of one file system at a time disturb each other.
pub fn audit<B: Backend>(tmpfs: &Tmpfs<'_, B>, report: &mut dyn FnMut(Finding)) -> Usage {
    let root = tmpfs.root();
    let mut found = Usage::default();
    let mut directories = 1;
    for_each_entry(&root, &mut |parent, child| {
        match child.directory() {
            Some(_) => {
                directories += 1;
                let leads_to = child.with_state(tmpfs.backend(), |state| state.parent);
                // SAFETY: a directory counts its parent, and the tree is quiet.
                let is_parent =
                    leads_to.is_some_and(|leads_to| unsafe { leads_to.inode() }.number == parent.number);
                if !is_parent {
                    report(Finding::Parent { inode: child.number });
                }
            }
            // Relaxed: only this thread uses it.
            None => drop(child.seen.fetch_add(1, Ordering::Relaxed)),
        }
    });
    check_directory(tmpfs, root.inode(), &mut found, report);
    for_each_entry(&root, &mut |_, child| match child.directory() {
        Some(_) => check_directory(tmpfs, child, &mut found, report),
        None => check_file(tmpfs, child, &mut found, report),
    });
    for_each_entry(&root, &mut |_, child| {
        if child.directory().is_none() {
            child.seen.store(0, Ordering::Relaxed);
        }
    });
    debug_assert!(found.inodes >= directories, "fewer inodes than directories");
    let counted = tmpfs.usage();
    if found.inodes > counted.inodes || found.inode_bytes > counted.inode_bytes || found.pages > counted.pages
    {
        report(Finding::Usage { counted, found });
    }
    found
}

fn add_inode<B: Backend>(tmpfs: &Tmpfs<'_, B>, inode: &Inode<B>, found: &mut Usage) {
    found.inodes += 1;
    found.inode_bytes += INODE_BYTES + inode.xattrs.read(tmpfs.backend().platform()).share();
    found.pages += match &inode.content {
        Content::Regular { data, .. } => data.pages(),
        Content::Symlink(target) => u64::from(target.is_long()),
        _ => 0,
    };
}

fn check_file<B: Backend>(
    tmpfs: &Tmpfs<'_, B>,
    inode: &Inode<B>,
    found: &mut Usage,
    report: &mut dyn FnMut(Finding),
) {
    let names = inode.seen.fetch_or(LOOKED_AT, Ordering::Relaxed);
    if names & LOOKED_AT != 0 {
        return;
    }
    add_inode(tmpfs, inode, found);
    found.inode_bytes += (names - 1) * INODE_BYTES;
    let counted = inode.with_attributes(tmpfs.backend(), |attributes| u64::from(attributes.links));
    if counted != names {
        report(Finding::Links { inode: inode.number, counted, found: names });
    }
}

fn check_directory<B: Backend>(
    tmpfs: &Tmpfs<'_, B>,
    inode: &Inode<B>,
    found: &mut Usage,
    report: &mut dyn FnMut(Finding),
) {
    add_inode(tmpfs, inode, found);
    let Some(directory) = inode.directory() else { return };
    let names = directory.read(tmpfs.backend().platform());
    let (mut entries, mut below, mut most) = (0, 0, u64::MAX);
    while let Some((name, place, offset)) = names.at_most(most) {
        entries += u64::from(names.find(name) == Some(place));
        // SAFETY: the entry counts it, and the directory is locked.
        below += u64::from(unsafe { place.inode() }.kind.is_directory());
        most = offset - 1;
    }
    let (counted, links) = inode
        .with_attributes(tmpfs.backend(), |attributes| (attributes.entries, u64::from(attributes.links)));
    if counted != entries || counted != names.count() {
        report(Finding::Entries { inode: inode.number, counted, found: entries });
    }
    if links != 2 + below {
        report(Finding::Links { inode: inode.number, counted: links, found: 2 + below });
    }
}

/// Calls `visit` with each entry below `root`: the directory, and what it leads to.
fn for_each_entry<B: Backend>(root: &Node<'_, B>, visit: &mut dyn FnMut(&Inode<B>, &Inode<B>)) {
    let backend = &root.instance.backend;
    let mut current = root.inode();
    let mut most = u64::MAX;
    loop {
        let next = current.directory().and_then(|directory| {
            let names = directory.read(backend.platform());
            names.at_most(most).map(|(_, place, offset)| (place, offset))
        });
        if let Some((place, offset)) = next {
            // SAFETY: the entry counts it, and the tree is quiet.
            let child = unsafe { place.inode() };
            visit(current, child);
            most = offset - 1;
            if child.directory().is_some() {
                // Where to go on in the directory above.
                child.seen.store(most, Ordering::Relaxed);
                (current, most) = (child, u64::MAX);
            }
            continue;
        }
        if current.number == root.inode().number {
            return;
        }
        most = current.seen.swap(0, Ordering::Relaxed);
        let Some(parent) = current.with_state(backend, |state| state.parent) else { return };
        // SAFETY: a directory counts its parent, and the tree is quiet.
        current = unsafe { parent.inode() };
    }
}
