//! What a mapping maps, in one word.

use super::Vma;
use core::fmt;
use core::ptr;
use quire_file::Opening;

/// What a mapping maps.
///
/// A word with a tag in its low two bits. A file that is open is the address of its [`Opening`], and so is
/// shared memory: equal words are the same opening.
///
/// A VMA in a tree is a holder of the opening that it names. A value that outlives the holder that it was
/// read from can only be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Backing(*mut Opening<Vma>);

const _: () = assert!(align_of::<Opening<Vma>>() > Backing::TAG, "the tag has no room");

impl Backing {
    const TAG: usize = 0b11;
    const OPENED: usize = 0b00;
    const ZEROS: usize = 0b01;
    const FILE: usize = 0b10;
    const SHMEM: usize = 0b11;
    const TAG_BITS: u32 = 2;
    /// The largest number of a file.
    const MOST: u64 = (1 << 62) - 2;

    /// Zero-filled memory of the program's own.
    pub const ANONYMOUS: Self = Self::tagged(0, Self::ZEROS);

    const fn tagged(number: u64, tag: usize) -> Self {
        Self(ptr::without_provenance_mut((number as usize) << Self::TAG_BITS | tag))
    }

    /// The open file `opening`.
    #[inline]
    pub const fn opened(opening: &Opening<Vma>) -> Self {
        Self(ptr::from_ref(opening).cast_mut())
    }

    /// The open file `opening`, which is shared memory.
    #[inline]
    pub fn shmem(opening: &Opening<Vma>) -> Self {
        Self(ptr::from_ref(opening).cast_mut().map_addr(|addr| addr | Self::SHMEM))
    }

    /// A file that is only a number: the embedder's number `id`, up to 2^62 - 2. Its pages are zeros.
    #[inline]
    pub const fn file(id: u64) -> Self {
        Self::tagged(id, Self::FILE)
    }

    /// A private mapping of a file whose pages are all zeros (`/dev/zero`), number `id`: anonymous memory
    /// that still names the file.
    #[inline]
    pub const fn zeros(id: u64) -> Self {
        Self::tagged(if id > Self::MOST { Self::MOST } else { id } + 1, Self::ZEROS)
    }

    #[inline]
    fn tag(self) -> usize {
        self.0.addr() & Self::TAG
    }

    fn number(self) -> u64 {
        (self.0.addr() >> Self::TAG_BITS) as u64
    }

    /// Whether pages belong to the program alone and start as zeros.
    #[inline]
    pub fn is_anonymous(self) -> bool {
        self.tag() == Self::ZEROS
    }

    /// Whether it is an open file, or shared memory.
    #[inline]
    pub fn is_opened(self) -> bool {
        matches!(self.tag(), Self::OPENED | Self::SHMEM)
    }

    /// Whether it is an open file whose pages are written back when they are dirty.
    #[inline]
    pub fn is_written_back(self) -> bool {
        self.tag() == Self::OPENED
    }

    /// The open file, if it is one, or shared memory.
    ///
    /// # Safety
    ///
    /// A holder of the opening stays for as long as what is returned is used: the VMA that the value was read
    /// from, held by one of its locks, or the caller itself.
    #[inline]
    pub unsafe fn opening<'a>(self) -> Option<&'a Opening<Vma>> {
        let place = self.0.map_addr(|addr| addr & !Self::TAG);
        // SAFETY: it is a pointer from `opened` or `shmem`, and the opening is live (the caller's promise).
        self.is_opened().then(|| unsafe { &*place })
    }

    /// The embedder's number for the file, if it is a file with a number.
    #[inline]
    pub fn file_id(self) -> Option<u64> {
        match self.tag() {
            Self::FILE => Some(self.number()),
            Self::ZEROS => self.number().checked_sub(1),
            _ => None,
        }
    }

    /// Whether it is a file of any sort.
    #[inline]
    pub fn is_file(self) -> bool {
        self.is_opened() || self.file_id().is_some()
    }

    /// The word itself.
    #[inline]
    pub(super) const fn word(self) -> *mut Opening<Vma> {
        self.0
    }

    /// The value of a word.
    #[inline]
    pub(super) const fn of_word(word: *mut Opening<Vma>) -> Self {
        Self(word)
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag() {
            Self::OPENED => f.debug_tuple("Opened").field(&self.0).finish(),
            Self::FILE => f.debug_tuple("File").field(&self.number()).finish(),
            Self::SHMEM => f.debug_tuple("Shmem").field(&self.0).finish(),
            _ => match self.file_id() {
                Some(id) => f.debug_tuple("Zeros").field(&id).finish(),
                None => f.write_str("Anonymous"),
            },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::ptr::NonNull;
    use quire_file::FileMappings;

    #[test]
    fn a_word_says_what_was_put_in() {
        let mappings = FileMappings::new();
        // SAFETY: the mappings outlive the opening.
        let opening = unsafe { Opening::new(NonNull::from(&mappings)) };
        for id in [0, 1, 7, Backing::MOST] {
            let [file, zeros] = [Backing::file(id), Backing::zeros(id)];
            assert_eq!([file, zeros].map(Backing::file_id), [Some(id), Some(id)]);
            assert_eq!([file, zeros].map(Backing::is_anonymous), [false, true]);
            assert_eq!([file, zeros].map(Backing::is_file), [true, true]);
            for other in [file, zeros] {
                // SAFETY: it is none.
                assert!(!other.is_opened() && unsafe { other.opening() }.is_none());
            }
            assert!(file != zeros && zeros != Backing::ANONYMOUS);
        }
        assert!(Backing::ANONYMOUS.is_anonymous() && !Backing::ANONYMOUS.is_file());
        let (opened, shmem) = (Backing::opened(&opening), Backing::shmem(&opening));
        for one in [opened, shmem] {
            assert!(one.is_opened() && one.is_file() && !one.is_anonymous());
            assert_eq!(one.file_id(), None);
            // SAFETY: it lives until the end.
            assert!(unsafe { one.opening() }.is_some_and(|found| ptr::eq(found, &raw const opening)));
        }
        assert!(opened.is_written_back() && !shmem.is_written_back() && opened != shmem);
    }
}
