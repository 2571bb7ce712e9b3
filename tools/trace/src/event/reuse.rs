//! Reuse of pages, and how well they compress.

use std::fmt;

/// Pages that a program used some time before the event, whether they faulted or not.
///
/// The pages of one event are those that one sample found (or, with [`ReuseSource::Exact`], those that were
/// used one after the other, in this order).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reuse {
    /// The source of this.
    pub source: ReuseSource,
    /// The pages.
    pub runs: Vec<ReuseRun>,
}

/// Consecutive pages that were used in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReuseRun {
    /// Address of the first.
    pub start: u64,
    /// How many pages of 4 KiB.
    pub pages: u64,
    /// How they were used.
    pub access: ReuseAccess,
}

/// How a page was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReuseAccess {
    /// It was read or executed.
    Read,
    /// It was written.
    Write,
    /// The source does not report it.
    Unknown,
}

/// The source of uses of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReuseSource {
    /// A tool that saw each access: every use, in its order.
    Exact,
    /// How many pages of each mapping Linux found referenced since the sample before; which they are was
    /// chosen by the recorder.
    MappingCounts,
}

impl Reuse {
    /// The most pages that one event may name: bounds a reader's work for one event.
    pub const MOST_PAGES: u64 = 1 << 20;

    /// How many pages the event names.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs.iter().fold(0, |pages: u64, run| pages.saturating_add(run.pages))
    }

    /// As few events as hold these runs, in their order.
    pub fn split(source: ReuseSource, runs: impl IntoIterator<Item = ReuseRun>) -> Vec<Self> {
        let mut events: Vec<Self> = Vec::new();
        let mut room = 0;
        for mut run in runs {
            while run.pages > 0 {
                if room == 0 {
                    events.push(Self { source, runs: Vec::new() });
                    room = Self::MOST_PAGES;
                }
                let pages = run.pages.min(room);
                if let Some(event) = events.last_mut() {
                    event.runs.push(ReuseRun { pages, ..run });
                }
                room -= pages;
                run.pages -= pages;
                run.start = run.start.wrapping_add(pages << 12);
            }
        }
        events
    }
}

/// How well some of a program's anonymous pages compress. Nothing of their contents is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compressibility {
    /// Pages of zeros.
    pub zero: u32,
    /// Other pages all of whose 8-byte words are equal.
    pub same: u32,
    /// All others by the size that LZ4's block format brings them to: place n counts sizes above 256 n up to
    /// 256 (n + 1) bytes, the last place whatever is larger, too.
    pub sizes: [u32; Self::CLASSES],
}

impl Compressibility {
    /// How many classes of sizes there are.
    pub const CLASSES: usize = 16;
    /// By how many bytes the classes differ.
    pub const CLASS_BYTES: usize = 256;

    /// The class of a compressed size.
    #[must_use]
    pub fn class(bytes: usize) -> usize {
        (bytes.saturating_sub(1) / Self::CLASS_BYTES).min(Self::CLASSES - 1)
    }

    /// How many pages were sampled.
    #[must_use]
    pub fn pages(&self) -> u64 {
        [self.zero, self.same].iter().chain(&self.sizes).map(|count| u64::from(*count)).sum()
    }

    /// Counts one page that holds this.
    pub fn count(&mut self, contents: PageContents) {
        let count = match contents {
            PageContents::Zero => &mut self.zero,
            PageContents::Same => &mut self.same,
            PageContents::Compressed(bytes) => &mut self.sizes[Self::class(bytes.into())],
        };
        *count = count.saturating_add(1);
    }

    /// Adds another sample's pages.
    pub fn add(&mut self, other: &Self) {
        self.zero = self.zero.saturating_add(other.zero);
        self.same = self.same.saturating_add(other.same);
        for (count, more) in self.sizes.iter_mut().zip(other.sizes) {
            *count = count.saturating_add(more);
        }
    }
}

/// The contents of one page, as far as its compressed size depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageContents {
    /// Zeros.
    Zero,
    /// One 8-byte word again and again, which is not zero.
    Same,
    /// What LZ4's block format brings to so many bytes; those of a page if it does not become smaller.
    Compressed(u16),
}

impl PageContents {
    /// The most bytes that a page is compressed to: its own.
    pub const MOST_BYTES: u16 = 4096;

    /// The bytes of a page that needs more than one word.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Zero | Self::Same => 0,
            Self::Compressed(bytes) => bytes.into(),
        }
    }
}

/// One sampled page of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageSample {
    /// Which, counted in pages from the region's first address.
    pub page: u32,
    /// What it held.
    pub contents: PageContents,
}

/// In few words: a sample has hundreds.
impl fmt::Debug for PageSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.page)?;
        match self.contents {
            PageContents::Zero => f.write_str("zero"),
            PageContents::Same => f.write_str("same"),
            PageContents::Compressed(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// What some anonymous pages of a region held when they were about to be paged out. Nothing of their contents
/// is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContentSample {
    /// The region's first address.
    pub start: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// How the sampled pages compress.
    pub sizes: Compressibility,
    /// The bytes that LZ4's block format brings those counted in [`Compressibility::sizes`] to, together; a
    /// page that does not become smaller counts whole.
    pub compressed: u64,
    /// Some of these pages were compressed by zstd (level 3), too. What LZ4 brings those to, together: with
    /// [`zstd`](Self::zstd) it says how the two compare. 0 in files of version 5, and where none was.
    pub lz4_of_both: u64,
    /// What zstd brings them to, together; likewise at most their size.
    pub zstd: u64,
    /// The pages that [`sizes`](Self::sizes) counts, one by one. Empty in files of versions 5 to 7.
    pub pages: Vec<PageSample>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_split_and_nothing_is_lost() {
        let most = Reuse::MOST_PAGES;
        let run = |start: u64, pages| ReuseRun { start: start << 12, pages, access: ReuseAccess::Read };
        let events = Reuse::split(ReuseSource::Exact, [run(0, most - 1), run(most, 3), run(9, 0)]);
        assert_eq!(events.iter().map(Reuse::pages).collect::<Vec<_>>(), [most, 2]);
        assert_eq!(events[0].runs, [run(0, most - 1), run(most, 1)]);
        assert_eq!(events[1].runs, [run(most + 1, 2)]);
    }

    #[test]
    fn classes_end_with_their_size() {
        for (bytes, class) in [(0, 0), (256, 0), (257, 1), (4096, 15), (4400, 15)] {
            assert_eq!(Compressibility::class(bytes), class, "{bytes}");
        }
    }
}
