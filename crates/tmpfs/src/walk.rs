//! Paths: from a root and a directory, through symbolic links, and the calls on names as a path gives them.

use crate::attributes::{Kind, Owner, Stat};
use crate::backend::Backend;
use crate::error::Error;
use crate::instance::New;
use crate::node::{MovedName, Node, RenameOptions};
use core::fmt;

/// The longest path, in bytes.
const LONGEST_PATH: usize = 4095;
/// The most symbolic links in the way of a path.
const MOST_LINKS: usize = 40;

/// The last part of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last<'p> {
    /// A name.
    Name(&'p [u8]),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// The path has slashes only.
    Root,
}

/// Where a path leads but for its last part.
#[derive(Debug)]
pub struct Parent<'t, 'p, B: Backend> {
    /// The directory.
    pub directory: Node<'t, B>,
    /// The last part, which need not exist.
    pub last: Last<'p>,
    /// Whether a slash follows it.
    pub slash: bool,
}

/// A program's view of a file system, for calls that name what they work on by a path, with Linux's results
/// for `.`, `..`, slashes at the end and symbolic links.
///
/// Whether a program may make or remove names in a directory is the embedder's to check, between
/// [`parent`](Self::parent) and the call on the [`Node`]; here it is asked only which directories a program
/// may search.
pub struct Walk<'w, 't, B: Backend> {
    /// The program's root: `..` does not leave it.
    pub root: &'w Node<'t, B>,
    /// Where a path without a slash in front begins.
    pub start: &'w Node<'t, B>,
    /// Whether the program may search a directory.
    pub may_search: &'w dyn Fn(&Stat) -> bool,
}

/// What becomes of the last part.
#[derive(Clone, Copy)]
enum Wish<'a> {
    /// It is looked up; a symbolic link is followed, or not.
    Find { follow: bool },
    /// If there is no such name a regular file is made.
    Create { owner: &'a Owner, exclusive: bool },
}

/// Parts of a path that are left: the path itself, and behind it targets of symbolic links.
struct Rest<'t, 'p, B: Backend> {
    path: &'p [u8],
    /// Links that are being followed, and how many bytes of their targets are done.
    links: [Option<(Node<'t, B>, usize)>; MOST_LINKS],
    depth: usize,
    followed: usize,
}

/// The next part: where it begins and ends, and where the bytes behind it and its slashes do.
fn next_part(path: &[u8]) -> Option<(usize, usize, usize)> {
    let start = path.iter().position(|byte| *byte != b'/')?;
    let end = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |at| start + at);
    let rest = path[end..].iter().position(|byte| *byte != b'/').map_or(path.len(), |at| end + at);
    Some((start, end, rest))
}

impl<'t, B: Backend> Rest<'t, '_, B> {
    /// Calls `part` with the next part, whether a slash follows it, and whether it is the last one.
    fn with_next<R>(&mut self, part: impl FnOnce(&[u8], bool, bool) -> R) -> Option<R> {
        let is_only = self.depth <= 1 && self.path.is_empty();
        if let Some((link, done)) = self.depth.checked_sub(1).and_then(|top| self.links[top].as_mut()) {
            // One that is done has been dropped.
            let left = &link.target().unwrap_or_default()[*done..];
            let (start, end, rest) = next_part(left)?;
            *done += rest;
            return Some(part(&left[start..end], rest > end, is_only && rest == left.len()));
        }
        let (start, end, rest) = next_part(self.path)?;
        let (name, slash) = (&self.path[start..end], rest > end);
        self.path = &self.path[rest..];
        Some(part(name, slash, self.path.is_empty()))
    }

    /// Drops the links whose targets are done.
    fn drop_done(&mut self) {
        while let Some(top) = self.depth.checked_sub(1)
            && let Some((link, done)) = &self.links[top]
            && link.target().is_ok_and(|target| target.len() == *done)
        {
            self.links[top] = None;
            self.depth = top;
        }
    }

    fn follow(&mut self, link: Node<'t, B>) -> Result<(), Error> {
        self.followed += 1;
        if self.followed > MOST_LINKS {
            return Err(Error::Loop);
        }
        link.accessed();
        self.drop_done();
        // Of slashes only it leads to the root.
        if next_part(link.target()?).is_none() {
            return Ok(());
        }
        let place = self.links.get_mut(self.depth).ok_or(Error::Loop)?;
        *place = Some((link, 0));
        self.depth += 1;
        Ok(())
    }
}

/// Where a step leads.
enum Step<'t, B: Backend> {
    To(Node<'t, B>),
    Through(Node<'t, B>),
}

impl<'t, B: Backend> Walk<'_, 't, B> {
    /// What a path leads to; a symbolic link at its end is followed if the caller says so, or if a slash
    /// follows it.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::NotDirectory`]; [`Error::Loop`]; [`Error::NameTooLong`];
    /// [`Error::Access`].
    pub fn lookup(&self, path: &[u8], follow: bool) -> Result<Node<'t, B>, Error> {
        self.walk(path, Wish::Find { follow })
    }

    /// What a path leads to; if there is no such name, a regular file is made (`open` with `O_CREAT`). With
    /// `exclusive` it must not exist (`O_EXCL`).
    ///
    /// # Errors
    ///
    /// As for [`lookup`](Self::lookup) and [`Node::create`]; [`Error::IsDirectory`].
    pub fn open_or_create(&self, path: &[u8], owner: &Owner, exclusive: bool) -> Result<Node<'t, B>, Error> {
        self.walk(path, Wish::Create { owner, exclusive })
    }

    fn search<'n>(&self, directory: &'n Node<'t, B>) -> Result<&'n Node<'t, B>, Error> {
        let stat = directory.stat();
        if !stat.kind.is_directory() {
            Err(Error::NotDirectory)
        } else if (self.may_search)(&stat) {
            Ok(directory)
        } else {
            Err(Error::Access)
        }
    }

    fn begin(&self, path: &[u8]) -> Result<Node<'t, B>, Error> {
        match path.first() {
            None => Err(Error::NotFound),
            Some(_) if path.len() > LONGEST_PATH => Err(Error::NameTooLong),
            Some(b'/') => Ok(self.root.clone()),
            Some(_) => Ok(self.start.clone()),
        }
    }

    fn walk(&self, path: &[u8], wish: Wish<'_>) -> Result<Node<'t, B>, Error> {
        let mut current = self.begin(path)?;
        let mut rest = Rest { path, links: [const { None }; MOST_LINKS], depth: 0, followed: 0 };
        let mut directory = false;
        while let Some(step) = rest.with_next(|name, slash, is_last| {
            directory |= slash && is_last;
            self.step(&current, name, is_last.then_some(wish), directory)
        }) {
            match step? {
                Step::To(next) => {
                    current = next;
                    rest.drop_done();
                }
                Step::Through(link) => {
                    if link.target()?.first() == Some(&b'/') {
                        current = self.root.clone();
                    }
                    rest.follow(link)?;
                }
            }
        }
        let is_directory = current.inode().kind.is_directory();
        match wish {
            _ if directory && !is_directory => Err(Error::NotDirectory),
            Wish::Create { exclusive: true, .. } if is_directory => Err(Error::Exists),
            Wish::Create { .. } if is_directory => Err(Error::IsDirectory),
            _ => Ok(current),
        }
    }

    /// One part of a path; of the last one `last` says what becomes of it, and `directory` whether a slash
    /// follows.
    fn step(
        &self,
        current: &Node<'t, B>,
        name: &[u8],
        last: Option<Wish<'_>>,
        directory: bool,
    ) -> Result<Step<'t, B>, Error> {
        self.search(current)?;
        match name {
            b"." => return Ok(Step::To(current.clone())),
            b".." if current.is_same(self.root) => return Ok(Step::To(current.clone())),
            b".." => return current.parent().map(Step::To),
            _ => {}
        }
        let child = match last {
            Some(Wish::Create { .. }) if directory => return Err(Error::IsDirectory),
            Some(Wish::Create { owner, exclusive }) => loop {
                match current.lookup(name) {
                    Err(Error::NotFound) => {}
                    Ok(_) if exclusive => return Err(Error::Exists),
                    found => break found?,
                }
                match current.create(name, New::Regular, owner) {
                    // Another thread was faster.
                    Err(Error::Exists) if !exclusive => {}
                    made => return made.map(Step::To),
                }
            },
            _ => current.lookup(name)?,
        };
        let follow = match last {
            Some(Wish::Find { follow }) => follow || directory,
            _ => true,
        };
        let is_link = child.inode().kind == Kind::Symlink;
        Ok(if follow && is_link { Step::Through(child) } else { Step::To(child) })
    }

    /// The directory of the last part of a path, and that part. A symbolic link there is not followed.
    ///
    /// # Errors
    ///
    /// As for [`lookup`](Self::lookup), of what is before the last part.
    pub fn parent<'p>(&self, path: &'p [u8]) -> Result<Parent<'t, 'p, B>, Error> {
        let begin = self.begin(path)?;
        let Some(end) = path.iter().rposition(|byte| *byte != b'/') else {
            return Ok(Parent { directory: begin, last: Last::Root, slash: true });
        };
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let directory =
            if start == 0 { begin } else { self.walk(&path[..start], Wish::Find { follow: true })? };
        self.search(&directory)?;
        let last = match &path[start..=end] {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(name),
        };
        Ok(Parent { directory, last, slash: end + 1 < path.len() })
    }

    /// The directory and the name of what is to be made.
    fn place_for<'p>(&self, path: &'p [u8], slash_fits: bool) -> Result<(Node<'t, B>, &'p [u8]), Error> {
        let Parent { directory, last, slash } = self.parent(path)?;
        let Last::Name(name) = last else { return Err(Error::Exists) };
        if slash && !slash_fits {
            return Err(directory.lookup(name).map_or_else(|error| error, |_| Error::Exists));
        }
        Ok((directory, name))
    }

    /// Makes an inode at the end of a path (`mkdir`, `mknod`, `symlink`).
    ///
    /// # Errors
    ///
    /// As for [`parent`](Self::parent) and [`Node::create`].
    pub fn create(&self, path: &[u8], new: New<'_>, owner: &Owner) -> Result<Node<'t, B>, Error> {
        new.check()?;
        let (directory, name) = self.place_for(path, new == New::Directory)?;
        directory.create(name, new, owner)
    }

    /// Gives `target` one more name (`link`).
    ///
    /// # Errors
    ///
    /// As for [`parent`](Self::parent) and [`Node::link`].
    pub fn link(&self, target: &Node<'t, B>, path: &[u8]) -> Result<(), Error> {
        let (directory, name) = self.place_for(path, false)?;
        directory.link(name, target)
    }

    /// Removes a name of what is no directory (`unlink`).
    ///
    /// # Errors
    ///
    /// As for [`parent`](Self::parent) and [`Node::unlink`].
    pub fn unlink(&self, path: &[u8]) -> Result<(), Error> {
        let Parent { directory, last, slash } = self.parent(path)?;
        let Last::Name(name) = last else { return Err(Error::IsDirectory) };
        if slash {
            let is_directory = directory.lookup(name)?.inode().kind.is_directory();
            return Err(if is_directory { Error::IsDirectory } else { Error::NotDirectory });
        }
        directory.unlink(name)
    }

    /// Removes a directory (`rmdir`).
    ///
    /// # Errors
    ///
    /// As for [`parent`](Self::parent) and [`Node::remove_directory`]; [`Error::Invalid`],
    /// [`Error::NotEmpty`] and [`Error::Busy`] for `.`, `..` and `/`.
    pub fn remove_directory(&self, path: &[u8]) -> Result<(), Error> {
        let Parent { directory, last, .. } = self.parent(path)?;
        match last {
            Last::Name(name) => directory.remove_directory(name),
            Last::Dot => Err(Error::Invalid),
            Last::DotDot => Err(Error::NotEmpty),
            Last::Root => Err(Error::Busy),
        }
    }

    /// Moves a name (`rename`).
    ///
    /// # Errors
    ///
    /// As for [`parent`](Self::parent) and [`Node::rename`]; [`Error::Busy`] for `.`, `..` and `/`.
    pub fn rename(&self, old: &[u8], new: &[u8], options: &RenameOptions) -> Result<(), Error> {
        let (from, to) = (self.parent(old)?, self.parent(new)?);
        let Last::Name(old) = from.last else { return Err(Error::Busy) };
        let Last::Name(new) = to.last else {
            return Err(if options.no_replace { Error::Exists } else { Error::Busy });
        };
        let old = MovedName { name: old, slash: from.slash };
        let new = MovedName { name: new, slash: to.slash };
        from.directory.move_name(old, &to.directory, new, options)
    }
}

impl<B: Backend> fmt::Debug for Walk<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("root", self.root).field("start", self.start).finish_non_exhaustive()
    }
}
