//! The entries of a directory: by name, and by their place in its listing.
//!
//! Both are treaps: binary search trees whose entries also have a random priority, and none has one of a
//! higher priority below it; so the depth is logarithmic whatever names a program chooses, and no change
//! allocates. The links lie in the entries. (R. Seidel, C. Aragon: "Randomized Search Trees", 1996.)
//!
//! An entry keeps its place in the listing as long as its name exists, whatever it leads to. New ones come
//! behind all others, and the listing goes backwards: it does not meet what was made after it began.

use crate::entry::{LooseEntry, Place, hash_of, mix, name_of};
use core::cmp::Ordering;
use core::fmt;
use quire_arch::Platform;

/// Positions of a listing before the first entry are `.`, `..` and the begin.
pub(crate) const FIRST_OFFSET: u64 = 3;

const BY_NAME: usize = 0;
const BY_OFFSET: usize = 1;
const LEFT: usize = 0;
const RIGHT: usize = 1;

/// What entries are looked for by.
#[derive(Clone, Copy)]
enum Key<'n> {
    Name(u64, &'n [u8]),
    Offset(u64),
}

impl<'n> Key<'n> {
    fn name(name: &'n [u8]) -> Self {
        Self::Name(hash_of(name), name)
    }

    const fn tree(self) -> usize {
        match self {
            Self::Name(..) => BY_NAME,
            Self::Offset(_) => BY_OFFSET,
        }
    }

    /// Compares it with that of an entry.
    ///
    /// # Safety
    ///
    /// The entry lives.
    unsafe fn compare<T>(self, place: Place<T>) -> Ordering {
        // SAFETY: the entry lives (caller).
        unsafe {
            let entry = place.as_ptr();
            match self {
                Self::Name(hash, name) => hash.cmp(&(*entry).hash).then_with(|| name.cmp(name_of(place))),
                Self::Offset(offset) => offset.cmp(&(*entry).offset),
            }
        }
    }
}

/// The entries of a directory, which owns them; they are all of one heap.
pub(crate) struct Directory<T> {
    roots: [Option<Place<T>>; 2],
    next_offset: u64,
    count: u64,
    /// Where the priorities come from.
    random: u64,
    dead: bool,
}

// SAFETY: the entries are the directory's own, and are reached through it only.
unsafe impl<T: Send> Send for Directory<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for Directory<T> {}

impl<T: Copy> Directory<T> {
    /// An empty directory. Programs must not be able to guess `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { roots: [None; 2], next_offset: FIRST_OFFSET, count: 0, random: seed, dead: false }
    }

    /// How many entries it has.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Whether it was removed: nothing comes into it any more.
    pub(crate) const fn is_dead(&self) -> bool {
        self.dead
    }

    /// It is being removed.
    pub(crate) const fn kill(&mut self) {
        self.dead = true;
    }

    fn place_of(&self, key: Key<'_>) -> Option<Place<T>> {
        let tree = key.tree();
        let mut next = self.roots[tree];
        while let Some(place) = next {
            // SAFETY: entries in the trees live as long as the directory is borrowed.
            let order = unsafe { key.compare(place) };
            let side = match order {
                Ordering::Equal => return Some(place),
                Ordering::Less => LEFT,
                Ordering::Greater => RIGHT,
            };
            // SAFETY: as before.
            next = unsafe { (*place.as_ptr()).links[tree][side] };
        }
        None
    }

    /// What `name` leads to.
    pub(crate) fn find(&self, name: &[u8]) -> Option<T> {
        // SAFETY: the entry lives as long as the directory is borrowed.
        self.place_of(Key::name(name)).map(|place| unsafe { (*place.as_ptr()).child })
    }

    /// The entry with the highest offset that is at most `most`: its name, what it leads to, its offset.
    pub(crate) fn at_most(&self, most: u64) -> Option<(&[u8], T, u64)> {
        let mut best = None;
        let mut next = self.roots[BY_OFFSET];
        while let Some(place) = next {
            // SAFETY: entries in the trees live as long as the directory is borrowed.
            let entry = unsafe { &*place.as_ptr() };
            let side = if entry.offset <= most {
                best = Some((place, entry));
                RIGHT
            } else {
                LEFT
            };
            next = entry.links[BY_OFFSET][side];
        }
        // SAFETY: as before.
        best.map(|(place, entry)| (unsafe { name_of(place) }, entry.child, entry.offset))
    }

    /// Adds an entry, whose name it does not have.
    pub(crate) fn insert<P: Platform>(&mut self, entry: LooseEntry<'_, T, P>) {
        let place = entry.into_place();
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // SAFETY: the entry lives, and is this directory's from now on. So is its name.
        let (hash, name) = unsafe {
            let entry = place.as_ptr();
            (*entry).priority = mix(self.random);
            (*entry).offset = self.next_offset;
            ((*entry).hash, name_of(place))
        };
        debug_assert!(self.place_of(Key::Name(hash, name)).is_none(), "a name is added twice");
        self.link(place, Key::Name(hash, name));
        self.link(place, Key::Offset(self.next_offset));
        self.next_offset += 1;
        self.count += 1;
    }

    /// Makes `name` lead to `child`, and returns what it led to.
    pub(crate) fn replace(&mut self, name: &[u8], child: T) -> Option<T> {
        let place = self.place_of(Key::name(name))?;
        // SAFETY: the entry lives, and the directory is borrowed exclusively.
        Some(unsafe { core::mem::replace(&mut (*place.as_ptr()).child, child) })
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<Place<T>> {
        let place = self.place_of(Key::name(name))?;
        self.take_out(place);
        Some(place)
    }

    /// Removes some entry, and returns it with what it leads to.
    pub(crate) fn pop(&mut self) -> Option<(Place<T>, T)> {
        let place = self.roots[BY_OFFSET]?;
        self.take_out(place);
        // SAFETY: the entry lives until the caller frees it.
        Some((place, unsafe { (*place.as_ptr()).child }))
    }

    fn take_out(&mut self, place: Place<T>) {
        // SAFETY: the entry lives until the caller frees it.
        let (hash, name, offset) =
            unsafe { ((*place.as_ptr()).hash, name_of(place), (*place.as_ptr()).offset) };
        self.unlink(Key::Name(hash, name));
        self.unlink(Key::Offset(offset));
        self.count -= 1;
    }

    /// Puts an entry into the tree of `key`, which is its own.
    fn link(&mut self, new: Place<T>, key: Key<'_>) {
        let tree = key.tree();
        let mut link: *mut Option<Place<T>> = &raw mut self.roots[tree];
        // SAFETY: every link is the root or lies in an entry of the tree, which lives, and the directory is
        // borrowed exclusively; so do the two ends, which lie in the new entry or one that is below it.
        unsafe {
            let priority = (*new.as_ptr()).priority;
            while let Some(place) = *link
                && (*place.as_ptr()).priority >= priority
            {
                let side = if key.compare(place) == Ordering::Less { LEFT } else { RIGHT };
                link = &raw mut (*place.as_ptr()).links[tree][side];
            }
            // What was here is split into what comes before the new entry and what comes behind it.
            let mut rest = (*link).replace(new);
            let mut before: *mut Option<Place<T>> = &raw mut (*new.as_ptr()).links[tree][LEFT];
            let mut behind: *mut Option<Place<T>> = &raw mut (*new.as_ptr()).links[tree][RIGHT];
            while let Some(place) = rest {
                if key.compare(place) == Ordering::Greater {
                    *before = rest;
                    before = &raw mut (*place.as_ptr()).links[tree][RIGHT];
                    rest = *before;
                } else {
                    *behind = rest;
                    behind = &raw mut (*place.as_ptr()).links[tree][LEFT];
                    rest = *behind;
                }
            }
            *before = None;
            *behind = None;
        }
    }

    /// Takes the entry with `key` out of its tree, if it is there.
    fn unlink(&mut self, key: Key<'_>) {
        let tree = key.tree();
        let mut link: *mut Option<Place<T>> = &raw mut self.roots[tree];
        // SAFETY: as in `link`.
        unsafe {
            let [mut before, mut behind] = loop {
                let Some(place) = *link else { return };
                let side = match key.compare(place) {
                    Ordering::Equal => break (*place.as_ptr()).links[tree],
                    Ordering::Less => LEFT,
                    Ordering::Greater => RIGHT,
                };
                link = &raw mut (*place.as_ptr()).links[tree][side];
            };
            // What was below it is joined, by priority.
            while let (Some(left), Some(right)) = (before, behind) {
                if (*left.as_ptr()).priority >= (*right.as_ptr()).priority {
                    *link = before;
                    link = &raw mut (*left.as_ptr()).links[tree][RIGHT];
                    before = *link;
                } else {
                    *link = behind;
                    link = &raw mut (*right.as_ptr()).links[tree][LEFT];
                    behind = *link;
                }
            }
            *link = before.or(behind);
        }
    }
}

impl<T> fmt::Debug for Directory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("count", &self.count)
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}
