//! Which words a space may read.

use quire_arch::VirtAddr;

/// Every word that was written: its number, counted from 1, is the word itself.
#[derive(Default, Debug)]
pub(super) struct Words {
    written: Vec<Written>,
    lives: u32,
}

#[derive(Debug)]
struct Written {
    by: u32,
    /// Where in the page the first and the last copy lie, in words. Pages move, words within them do not.
    first: u64,
    copies: u64,
}

/// A space's ancestors, itself last: a number, and how many words had been written when the next one was
/// born.
#[derive(Clone, Debug)]
pub(super) struct Life(Vec<(u32, usize)>);

impl Life {
    pub(super) fn id(&self) -> u32 {
        self.0.last().map_or(0, |own| own.0)
    }
}

const PAGE_WORDS: u64 = 512;

impl Words {
    /// A space without ancestors.
    pub(super) fn life(&mut self) -> Life {
        self.lives += 1;
        Life(vec![(self.lives, usize::MAX)])
    }

    /// A space that begins with a copy of `parent`.
    pub(super) fn child_of(&mut self, parent: &Life) -> Life {
        let mut ancestors: Vec<_> =
            parent.0.iter().map(|&(id, until)| (id, until.min(self.written.len()))).collect();
        self.lives += 1;
        ancestors.push((self.lives, usize::MAX));
        Life(ancestors)
    }

    /// The word that the space with the number `by` is about to write, `copies` times from `addr` on.
    pub(super) fn write(&mut self, by: u32, addr: VirtAddr, copies: usize) -> u64 {
        self.written.push(Written { by, first: addr.0 / 8 % PAGE_WORDS, copies: copies as u64 });
        self.written.len() as u64
    }

    /// Panics if the space may not have `word` at `addr`, in memory that `is_shared` or its own.
    pub(super) fn check(&self, life: &Life, addr: VirtAddr, word: u64, is_shared: bool) {
        let Some(index) = word.checked_sub(1) else { return };
        let written = self.written.get(index as usize);
        let written = written.unwrap_or_else(|| panic!("at {addr:x?} is {word:#x}, which was not written"));
        let known = life.0.iter().any(|&(id, until)| id == written.by && (index as usize) < until);
        assert!(known || is_shared, "at {addr:x?} is a word of another space: {written:?} in {life:?}");
        let behind = (addr.0 / 8).wrapping_sub(written.first) % PAGE_WORDS;
        assert!(behind < written.copies, "at {addr:x?} is a word from another place of a page: {written:?}");
    }
}
