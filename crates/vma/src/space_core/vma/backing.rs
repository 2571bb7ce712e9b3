//! What a mapping maps, in one word.

use super::Vma;
use core::fmt;
use core::ptr;
use quire_file::Opening;

/// What a mapping maps.
///
/// A word with a tag in its low two bits. A file that is open is the address of its [`Opening`]: equal words
/// are the same opening.
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
    const SHARED_ANONYMOUS: usize = 0b11;
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

    /// Memory without a file that is shared with children, number `id`.
    #[inline]
    pub const fn shared_anonymous(id: u64) -> Self {
        Self::tagged(id, Self::SHARED_ANONYMOUS)
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

    /// Whether it is an open file.
    #[inline]
    pub fn is_opened(self) -> bool {
        self.tag() == Self::OPENED
    }

    /// The open file, if it is one.
    ///
    /// # Safety
    ///
    /// A holder of the opening stays for as long as what is returned is used: the VMA that the value was read
    /// from, held by one of its locks, or the caller itself.
    #[inline]
    pub unsafe fn opening<'a>(self) -> Option<&'a Opening<Vma>> {
        // SAFETY: the word is a pointer from `opened`, and the opening is live (the caller's promise).
        self.is_opened().then(|| unsafe { &*self.0 })
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
            Self::SHARED_ANONYMOUS => f.debug_tuple("SharedAnonymous").field(&self.number()).finish(),
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
            let [file, zeros, shared] =
                [Backing::file(id), Backing::zeros(id), Backing::shared_anonymous(id)];
            assert_eq!([file, zeros, shared].map(Backing::file_id), [Some(id), Some(id), None]);
            assert_eq!([file, zeros, shared].map(Backing::is_anonymous), [false, true, false]);
            assert_eq!([file, zeros, shared].map(Backing::is_file), [true, true, false]);
            for other in [file, zeros, shared] {
                // SAFETY: it is none.
                assert!(!other.is_opened() && unsafe { other.opening() }.is_none());
            }
            assert!(file != zeros && zeros != shared && shared != file && zeros != Backing::ANONYMOUS);
        }
        assert!(Backing::ANONYMOUS.is_anonymous() && !Backing::ANONYMOUS.is_file());
        let opened = Backing::opened(&opening);
        assert!(opened.is_opened() && opened.is_file() && !opened.is_anonymous());
        assert_eq!(opened.file_id(), None);
        // SAFETY: it lives until the end.
        assert!(unsafe { opened.opening() }.is_some_and(|found| ptr::eq(found, &raw const opening)));
    }
}
