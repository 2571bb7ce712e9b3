//! Names: looked up, made, linked.

use super::{Node, check_name};
use crate::attributes::{Kind, Owner};
use crate::backend::Backend;
use crate::error::Error;
use crate::instance::New;

impl<B: Backend> Node<'_, B> {
    /// What `name` leads to in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`], and [`Error::Invalid`] for `.`
    /// and `..`: a [`Walk`](crate::Walk) knows those.
    pub fn lookup(&self, name: &[u8]) -> Result<Self, Error> {
        let directory = self.directory()?;
        check_name(name)?;
        let names = directory.read(self.instance.backend.platform());
        let place = names.find(name).ok_or(Error::NotFound)?;
        // SAFETY: the entry counts it, and stays while the directory is locked.
        Ok(unsafe { Self::of(self.instance, place) })
    }

    /// The directory that this one is in (`..`), or was in when it was removed; of the root itself.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`].
    pub fn parent(&self) -> Result<Self, Error> {
        self.directory()?;
        let parent = self.inode().with_state(&self.instance.backend, |state| {
            state.parent.inspect(|parent| self.instance.hold(*parent))
        });
        Ok(match parent {
            // SAFETY: it was counted under the lock under which it changes.
            Some(parent) => unsafe { Self::from_counted(self.instance, parent) },
            None => self.clone(),
        })
    }

    /// Makes an inode with this name in the directory (`mkdir`, `mknod`, `symlink`, `open` with `O_CREAT`).
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotFound`]: the directory was removed; [`Error::NoSpace`];
    /// [`Error::NoMemory`]; as for [`lookup`](Self::lookup); of a symbolic link [`Error::NotFound`] with an
    /// empty target.
    pub fn create(&self, name: &[u8], new: New<'_>, owner: &Owner) -> Result<Self, Error> {
        let directory = self.directory()?;
        check_name(name)?;
        let node;
        let mut names = directory.write(self.instance.backend.platform());
        if names.is_dead() {
            return Err(Error::NotFound);
        }
        if names.find(name).is_some() {
            return Err(Error::Exists);
        }
        let place = self.instance.new_inode(new, owner, Some(self.place), true)?;
        // SAFETY: a new inode is counted for its first handle.
        node = unsafe { Self::from_counted(self.instance, place) };
        let entry = match self.instance.new_entry(name, place) {
            Ok(entry) => entry,
            Err(error) => {
                node.attributes(|attributes| attributes.links = 0);
                return Err(error);
            }
        };
        self.instance.hold(place);
        names.insert(entry);
        let is_directory = node.inode().kind.is_directory();
        let now = self.instance.now();
        self.attributes(|attributes| {
            attributes.entries += 1;
            attributes.links += u32::from(is_directory);
            attributes.modify(now);
        });
        drop(names);
        Ok(node)
    }

    /// Makes a regular file without a name (`O_TMPFILE`), as if in this directory: [`link`](Self::link) can
    /// give it one.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`], [`Error::NoSpace`] and [`Error::NoMemory`].
    pub fn create_unnamed(&self, owner: &Owner) -> Result<Self, Error> {
        self.directory()?;
        let place = self.instance.new_inode(New::Regular, owner, Some(self.place), false)?;
        // SAFETY: a new inode is counted for its first handle.
        Ok(unsafe { Self::from_counted(self.instance, place) })
    }

    /// Gives `target` one more name, in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotPermitted`]: it is a directory; [`Error::NotFound`]: it had a name, and
    /// has none any more, or the directory was removed; [`Error::NoSpace`]; [`Error::NoMemory`];
    /// [`Error::OtherFileSystem`]; as for [`lookup`](Self::lookup).
    pub fn link(&self, name: &[u8], target: &Self) -> Result<(), Error> {
        let directory = self.directory()?;
        check_name(name)?;
        if !self.is_of_same_file_system(target) {
            return Err(Error::OtherFileSystem);
        }
        let mut names = directory.write(self.instance.backend.platform());
        if names.is_dead() {
            return Err(Error::NotFound);
        }
        if names.find(name).is_some() {
            return Err(Error::Exists);
        }
        if target.inode().kind == Kind::Directory {
            return Err(Error::NotPermitted);
        }
        let entry = self.instance.new_entry(name, target.place)?;
        let now = self.instance.now();
        target.attributes(|attributes| {
            match attributes.links {
                0 if attributes.linkable => {}
                0 => return Err(Error::NotFound),
                u32::MAX => return Err(Error::TooManyLinks),
                _ => self.instance.counts().take_link()?,
            }
            attributes.links += 1;
            attributes.linkable = false;
            attributes.changed = now;
            Ok(())
        })?;
        self.instance.hold(target.place);
        names.insert(entry);
        self.attributes(|attributes| {
            attributes.entries += 1;
            attributes.modify(now);
        });
        Ok(())
    }
}
