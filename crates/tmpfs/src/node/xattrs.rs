//! Extended attributes.

use super::Node;
use crate::attributes::Kind;
use crate::backend::Backend;
use crate::error::Error;
use crate::xattr::{SetMode, check_lengths, check_name, share_of};

impl<B: Backend> Node<'_, B> {
    /// Only regular files and directories have attributes of programs.
    fn has_user_attributes(&self, name: &[u8]) -> bool {
        !name.starts_with(b"user.") || matches!(self.inode().kind, Kind::Regular | Kind::Directory)
    }

    /// Sets an extended attribute (`setxattr`) of the name spaces `user.`, `trusted.` or `security.`. Who may
    /// use which is the embedder's.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] and [`Error::NoData`] as `mode` says; [`Error::ValueTooLarge`]; [`Error::Range`]:
    /// the name is too long; [`Error::NotSupported`]: another name space; [`Error::NotPermitted`]: `user.`
    /// on what is no file and no directory; [`Error::NoSpace`]; [`Error::NoMemory`].
    pub fn set_xattr(&self, name: &[u8], value: &[u8], mode: SetMode) -> Result<(), Error> {
        check_lengths(name, value)?;
        if !self.has_user_attributes(name) {
            return Err(Error::NotPermitted);
        }
        check_name(name)?;
        let (heap, counts) = (self.instance.heap, self.instance.counts());
        let mut xattrs = self.inode().xattrs.write(self.instance.backend.platform());
        // As in Linux: there must be space for the new value beside the old one, whatever is wrong else.
        let share = share_of(name.len(), value.len());
        counts.take_attribute(share)?;
        let freed =
            xattrs.set(heap, (name, value), mode).inspect_err(|_| counts.give_back_attribute(share))?;
        counts.give_back_attribute(freed);
        self.changed();
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NoData`]; as for [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), Error> {
        check_lengths(name, &[])?;
        if !self.has_user_attributes(name) {
            return Err(Error::NotPermitted);
        }
        check_name(name)?;
        let mut xattrs = self.inode().xattrs.write(self.instance.backend.platform());
        let freed = xattrs.remove(self.instance.heap, name).ok_or(Error::NoData)?;
        self.instance.counts().give_back_attribute(freed);
        self.changed();
        Ok(())
    }

    /// Calls `get` with the value of an extended attribute, under a lock: it calls nothing of a file system.
    ///
    /// # Errors
    ///
    /// [`Error::NoData`]; as for [`set_xattr`](Self::set_xattr).
    pub fn xattr<R>(&self, name: &[u8], get: impl FnOnce(&[u8]) -> R) -> Result<R, Error> {
        check_lengths(name, &[])?;
        if !self.has_user_attributes(name) {
            return Err(Error::NoData);
        }
        check_name(name)?;
        let xattrs = self.inode().xattrs.read(self.instance.backend.platform());
        xattrs.get(name).map(get).ok_or(Error::NoData)
    }

    /// Calls `visit` with the name of each extended attribute, as [`xattr`](Self::xattr) does.
    pub fn for_each_xattr(&self, visit: &mut dyn FnMut(&[u8])) {
        let xattrs = self.inode().xattrs.read(self.instance.backend.platform());
        xattrs.iter().for_each(|(name, _)| visit(name));
    }

    fn changed(&self) {
        let now = self.instance.now();
        self.attributes(|attributes| attributes.changed = now);
    }
}
