//! Uses of pages, and how well they compress.

use crate::event::{Compressibility, ContentSample, PageContents, PageSample, Reuse, ReuseRun};
use crate::format::varint::{Cursor, Malformed, difference, put_u64};
use crate::format::wire::{Wire, get_list, put_list, wire};

impl Wire for Reuse {
    fn put(&self, out: &mut Vec<u8>) {
        self.source.put(out);
        let mut end = 0;
        put_list(out, &self.runs, |run, out| {
            put_u64(out, difference(run.start, end));
            run.pages.put(out);
            run.access.put(out);
            end = end_of(run);
        });
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let source = Wire::get(cursor)?;
        let mut end = 0;
        let runs = get_list(cursor, 3, |cursor| {
            let start = cursor.restore(end)?;
            let run = ReuseRun { start, pages: cursor.u64()?, access: Wire::get(cursor)? };
            end = end_of(&run);
            Ok(run)
        });
        let reuse = Self { source, runs: runs? };
        if reuse.pages() > Self::MOST_PAGES {
            return Err(Malformed("a sample names more pages than one event may"));
        }
        Ok(reuse)
    }
}

wire!(ContentSample {
    start,
    bytes,
    sizes,
    compressed,
    lz4_of_both (since SIX, before 0),
    zstd (since SIX, before 0),
    pages (since EIGHT, before Vec::new()),
});

/// Those that lie one after the other take a byte and their size.
impl Wire for Vec<PageSample> {
    fn put(&self, out: &mut Vec<u8>) {
        let mut next = 0;
        put_list(out, self, |sample, out| {
            let page = u64::from(sample.page);
            put_u64(out, difference(page, next));
            sample.contents.put(out);
            next = page + 1;
        });
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let mut next = 0;
        get_list(cursor, 2, |cursor| {
            let page = cursor.restore(next)?;
            next = page.wrapping_add(1);
            let page = u32::try_from(page).map_err(|_| Malformed("a page of a sample lies too far away"))?;
            Ok(PageSample { page, contents: Wire::get(cursor)? })
        })
    }
}

/// The first numbers stand for pages that have no size.
impl Wire for PageContents {
    fn put(&self, out: &mut Vec<u8>) {
        put_u64(
            out,
            match self {
                Self::Zero => 0,
                Self::Same => 1,
                Self::Compressed(bytes) => u64::from(*bytes) + 2,
            },
        );
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(match cursor.u64()? {
            0 => Self::Zero,
            1 => Self::Same,
            number => {
                let bytes = u16::try_from(number - 2).ok().filter(|bytes| *bytes <= Self::MOST_BYTES);
                Self::Compressed(bytes.ok_or(Malformed("a compressed page is larger than a page"))?)
            }
        })
    }
}

/// Where the next run most likely starts.
fn end_of(run: &ReuseRun) -> u64 {
    run.start.wrapping_add(run.pages << 12)
}

impl Wire for Compressibility {
    fn put(&self, out: &mut Vec<u8>) {
        for count in [self.zero, self.same].iter().chain(&self.sizes) {
            count.put(out);
        }
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let mut sample = Self { zero: cursor.u32()?, same: cursor.u32()?, ..Self::default() };
        for count in &mut sample.sizes {
            *count = cursor.u32()?;
        }
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Version;

    fn read(bytes: &[u8], version: Version) -> (Option<ContentSample>, bool) {
        let mut cursor = Cursor::new(bytes, 0, version);
        (ContentSample::get(&mut cursor).ok(), cursor.is_at_end())
    }

    fn written(pages: &[(u32, PageContents)]) -> (ContentSample, Vec<u8>) {
        let sizes = Compressibility { zero: 3, ..Compressibility::default() };
        let pages = pages.iter().map(|&(page, contents)| PageSample { page, contents }).collect();
        let (compressed, lz4_of_both, zstd) = (77, 50, 40);
        let sample = ContentSample { start: 7, bytes: 9, sizes, compressed, lz4_of_both, zstd, pages };
        let mut bytes = Vec::new();
        sample.put(&mut bytes);
        (sample, bytes)
    }

    #[test]
    fn samples_of_version_7_do_not_tell_pages_and_those_of_version_5_nothing_of_zstd() {
        let (sample, mut bytes) = written(&[]);
        assert_eq!(read(&bytes, Version::EIGHT), (Some(sample.clone()), true));
        bytes.pop();
        assert_eq!(read(&bytes, Version::SEVEN), (Some(sample.clone()), true));
        assert_eq!(read(&bytes, Version::SIX), (Some(sample.clone()), true));
        assert_eq!(read(&bytes, Version::EIGHT), (None, true));
        bytes.truncate(bytes.len() - 2);
        let old = ContentSample { lz4_of_both: 0, zstd: 0, ..sample };
        assert_eq!(read(&bytes, Version::FIVE), (Some(old), true));
        assert_eq!(read(&bytes, Version::SIX), (None, true));
    }

    #[test]
    fn neighbouring_pages_take_few_bytes_and_none_is_larger_than_a_page() {
        let contents = [PageContents::Zero, PageContents::Same, PageContents::Compressed(100)];
        let (sample, bytes) = written(&[(5, contents[0]), (6, contents[1]), (7, contents[2])]);
        assert_eq!(&bytes[bytes.len() - 7..], [3, 10, 0, 0, 1, 0, 102]);
        assert_eq!(read(&bytes, Version::EIGHT), (Some(sample), true));
        // In no order, and the largest numbers.
        let most = PageContents::Compressed(PageContents::MOST_BYTES);
        let (sample, bytes) = written(&[(u32::MAX, most), (3, most), (3, contents[0])]);
        assert_eq!(read(&bytes, Version::EIGHT), (Some(sample), true));
        let (_, bytes) = written(&[(0, PageContents::Compressed(PageContents::MOST_BYTES + 1))]);
        assert_eq!(read(&bytes, Version::EIGHT).0, None);
        // A page before the first.
        let (_, mut bytes) = written(&[(1, contents[0])]);
        let at = bytes.len() - 2;
        bytes[at] = 1;
        assert_eq!(read(&bytes, Version::EIGHT).0, None);
    }
}
