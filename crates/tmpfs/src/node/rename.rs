//! Names that are moved.
//!
//! The locks: Rename, if the names are in two directories; then both directories, one that is above the other
//! first, else by address; then a directory that is replaced. Only the holder of Rename takes a lock that is
//! not below one that it holds, so no circle of waiters can close: all others wait downwards, and what is
//! locked first here is not below what is locked next.

use super::{LockedNames, Node, check_name};
use crate::attributes::Owner;
use crate::backend::{Backend, Time};
use crate::directory::Directory;
use crate::error::Error;
use crate::inode::Place;
use crate::instance::New;

/// How a name is moved (`renameat2`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameOptions {
    /// The new name must not exist (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// Both names exist, and change places (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// The old name stays, as a character device of number 0 of this owner (`RENAME_WHITEOUT`).
    pub whiteout: Option<Owner>,
}

impl RenameOptions {
    /// What the flags of a call say. `owner` is that of a whiteout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: no such flags, or not together.
    pub fn of_flags(flags: u32, owner: &Owner) -> Result<Self, Error> {
        if flags & !7 != 0 {
            return Err(Error::Invalid);
        }
        let options = Self {
            no_replace: flags & 1 != 0,
            exchange: flags & 2 != 0,
            whiteout: (flags & 4 != 0).then_some(*owner),
        };
        options.check().map(|()| options)
    }

    fn check(&self) -> Result<(), Error> {
        if self.exchange && (self.no_replace || self.whiteout.is_some()) {
            Err(Error::Invalid)
        } else {
            Ok(())
        }
    }
}

/// A name that is moved, as a path gave it.
#[derive(Clone, Copy)]
pub(crate) struct MovedName<'n> {
    pub(crate) name: &'n [u8],
    /// A slash follows it, so it must be a directory's.
    pub(crate) slash: bool,
}

/// The entries of the directories of both names.
enum Names<'l, B: Backend> {
    One(LockedNames<'l, B>),
    Two { old: LockedNames<'l, B>, new: LockedNames<'l, B> },
}

impl<B: Backend> Names<'_, B> {
    fn of_old(&mut self) -> &mut Directory<Place<B>> {
        match self {
            Self::One(both) => both,
            Self::Two { old, .. } => old,
        }
    }

    fn of_new(&mut self) -> &mut Directory<Place<B>> {
        match self {
            Self::One(both) => both,
            Self::Two { new, .. } => new,
        }
    }
}

/// What the two names lead to.
struct Ends<'t, B: Backend> {
    source: Node<'t, B>,
    target: Option<Node<'t, B>>,
}

impl<'t, B: Backend> Node<'t, B> {
    /// Moves the name `old` of this directory to `new` of the directory `to`, and removes what `new` led to.
    /// Names of one inode stay both.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Exists`]; [`Error::Invalid`]: a directory would be below itself, or the
    /// options contradict each other; [`Error::NotEmpty`]; [`Error::IsDirectory`] and
    /// [`Error::NotDirectory`]: one is a directory and the other not, and they do not change places;
    /// [`Error::NoSpace`]; [`Error::NoMemory`]; [`Error::OtherFileSystem`]; as for [`lookup`](Self::lookup).
    pub fn rename(&self, old: &[u8], to: &Self, new: &[u8], options: &RenameOptions) -> Result<(), Error> {
        let [old, new] = [old, new].map(|name| MovedName { name, slash: false });
        self.move_name(old, to, new, options)
    }

    pub(crate) fn move_name(
        &self,
        old: MovedName<'_>,
        to: &Self,
        new: MovedName<'_>,
        options: &RenameOptions,
    ) -> Result<(), Error> {
        options.check()?;
        if !self.is_of_same_file_system(to) {
            return Err(Error::OtherFileSystem);
        }
        self.directory()?;
        to.directory()?;
        check_name(old.name)?;
        // As in Linux the new name is looked at when the old one was found.
        let new_is_name = check_name(new.name);
        let platform = self.instance.backend.platform();
        // These are dropped after the locks: that may free what was replaced.
        let ends;
        let _rename = (!self.is_same(to)).then(|| self.instance.rename.write(platform));
        // What lies between the directories, if one is above the other.
        let below_old = self.way_down_to(to);
        let below_new = to.way_down_to(self);
        let mut names = self.lock_names(to, below_old.is_some(), below_new.is_some())?;
        if names.of_old().is_dead() || names.of_new().is_dead() {
            return Err(Error::NotFound);
        }
        let source = names.of_old().find(old.name).ok_or(Error::NotFound)?;
        new_is_name?;
        let target = names.of_new().find(new.name);
        // SAFETY: the entries count them, and the directories are locked.
        ends = unsafe {
            Ends {
                source: Self::of(self.instance, source),
                target: target.map(|target| Self::of(self.instance, target)),
            }
        };
        Self::check_ends(&ends, (old.slash, new.slash), options)?;
        if Some(source) == below_old {
            return Err(Error::Invalid);
        }
        if target.is_some() && target == below_new {
            return Err(if options.exchange { Error::Invalid } else { Error::NotEmpty });
        }
        let names_and = (&mut names, old.name, new.name);
        match &ends.target {
            Some(target) if target.is_same(&ends.source) => Ok(()),
            Some(target) if options.exchange => {
                self.exchange(to, names_and, &ends.source, target);
                Ok(())
            }
            _ => self.replace(to, names_and, &ends, options),
        }
    }

    /// What is refused whatever directories the names are in.
    fn check_ends(
        ends: &Ends<'t, B>,
        (old_slash, new_slash): (bool, bool),
        options: &RenameOptions,
    ) -> Result<(), Error> {
        let is_directory = |node: &Self| node.inode().kind.is_directory();
        let source = is_directory(&ends.source);
        let target = ends.target.as_ref().map(is_directory);
        match target {
            Some(_) if options.no_replace => return Err(Error::Exists),
            None if options.exchange => return Err(Error::NotFound),
            _ => {}
        }
        // A slash after a name says that it is a directory's: the new one of an exchange the target's, else
        // the source's.
        let new_is = if options.exchange { target == Some(true) } else { source };
        if old_slash && !source || new_slash && !new_is { Err(Error::NotDirectory) } else { Ok(()) }
    }

    /// The directory in this one on the way down to `below`; `None` if that is not below.
    fn way_down_to(&self, below: &Self) -> Option<Place<B>> {
        let mut place = below.place;
        if self.is_same(below) {
            return None;
        }
        loop {
            // SAFETY: `below` is held; each directory counts its parent, and while Rename is held, which it
            // is for different directories, none gets another.
            let inode = unsafe { place.inode() };
            let parent = inode.with_state(&self.instance.backend, |state| state.parent)?;
            if parent == self.place {
                return Some(place);
            }
            place = parent;
        }
    }

    fn lock_names<'l>(
        &'l self,
        to: &'l Self,
        is_above: bool,
        to_is_above: bool,
    ) -> Result<Names<'l, B>, Error> {
        let platform = self.instance.backend.platform();
        let (ours, theirs) = (self.directory()?, to.directory()?);
        if self.is_same(to) {
            return Ok(Names::One(ours.write(platform)));
        }
        if to_is_above || !is_above && to.place.is_before(self.place) {
            let new = theirs.write(platform);
            return Ok(Names::Two { old: ours.write(platform), new });
        }
        let old = ours.write(platform);
        Ok(Names::Two { old, new: theirs.write(platform) })
    }

    fn exchange(
        &self,
        to: &Self,
        (names, old, new): (&mut Names<'_, B>, &[u8], &[u8]),
        source: &Self,
        target: &Self,
    ) {
        // Each entry counts the other inode from now on.
        names.of_old().replace(old, target.place);
        names.of_new().replace(new, source.place);
        let now = self.instance.now();
        if !self.is_same(to) {
            source.move_directory(to);
            target.move_directory(self);
            let [ours, theirs] = [source, target].map(|node| u32::from(node.inode().kind.is_directory()));
            self.attributes(|attributes| attributes.links = attributes.links - ours + theirs);
            to.attributes(|attributes| attributes.links = attributes.links - theirs + ours);
        }
        self.mark_moved(to, source, Some(target), now);
    }

    fn replace(
        &self,
        to: &Self,
        (names, old, new): (&mut Names<'_, B>, &[u8], &[u8]),
        ends: &Ends<'t, B>,
        options: &RenameOptions,
    ) -> Result<(), Error> {
        let Ends { source, target } = ends;
        let is_directory = source.inode().kind.is_directory();
        match target.as_ref().map(|target| target.inode().kind.is_directory()) {
            Some(false) if is_directory => return Err(Error::NotDirectory),
            Some(true) if !is_directory => return Err(Error::IsDirectory),
            _ => {}
        }
        // All that can fail comes first.
        let emptied = match target {
            Some(target) if is_directory => Some((target, target.lock_empty()?)),
            _ => None,
        };
        let whiteout = options.whiteout.map(|owner| self.new_whiteout(&owner)).transpose()?;
        let entry = match target {
            None => Some(self.instance.new_entry(new, source.place)?),
            Some(_) => None,
        };
        let now = self.instance.now();
        match (emptied, target) {
            (Some((target, names)), _) => target.kill_directory(names, now),
            (None, Some(target)) => target.lose_link(now),
            (None, None) => {}
        }
        // The new entry counts the source, as the old one did until now.
        let (added, gone) = match (entry, target) {
            (Some(entry), _) => {
                names.of_new().insert(entry);
                (1, None)
            }
            (None, target) => {
                names.of_new().replace(new, source.place);
                (0, target.as_ref())
            }
        };
        if let Some(target) = gone {
            // SAFETY: the count was the entry's, which leads to the source now. `target` has another.
            drop(unsafe { Self::from_counted(self.instance, target.place) });
        }
        let kept = match whiteout {
            Some(whiteout) => {
                whiteout.attributes(|attributes| attributes.links = 1);
                names.of_old().replace(old, whiteout.into_counted());
                1
            }
            None => {
                let entry = names.of_old().remove(old);
                self.free_entry(entry);
                0
            }
        };
        self.attributes(|attributes| attributes.entries = attributes.entries + kept - 1);
        to.attributes(|attributes| attributes.entries += added);
        if is_directory {
            source.move_directory(to);
            self.attributes(|attributes| attributes.links -= 1);
            to.attributes(|attributes| attributes.links += u32::from(target.is_none()));
        }
        self.mark_moved(to, source, target.as_ref(), now);
        Ok(())
    }

    /// A whiteout that has no name yet.
    fn new_whiteout(&self, owner: &Owner) -> Result<Self, Error> {
        let owner = Owner { permissions: 0, ..*owner };
        let place = self.instance.new_inode(New::Character(0), &owner, Some(self.place), false)?;
        // SAFETY: a new inode is counted for its first handle.
        Ok(unsafe { Self::from_counted(self.instance, place) })
    }

    /// Makes `to` the parent of a directory. Rename is held, or it is already.
    fn move_directory(&self, to: &Self) {
        if !self.inode().kind.is_directory() {
            return;
        }
        self.instance.hold(to.place);
        let before = self.inode().with_state(&self.instance.backend, |state| state.parent.replace(to.place));
        if let Some(before) = before {
            // SAFETY: the count was this directory's.
            drop(unsafe { Self::from_counted(self.instance, before) });
        }
    }

    fn mark_moved(&self, to: &Self, source: &Self, target: Option<&Self>, now: Time) {
        for directory in [self, to] {
            directory.attributes(|attributes| attributes.modify(now));
        }
        for moved in [Some(source), target].into_iter().flatten() {
            moved.attributes(|attributes| attributes.changed = now);
        }
    }
}
