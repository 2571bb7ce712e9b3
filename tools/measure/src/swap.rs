//! The swap behind a memory limit, and its traffic.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::flat_keyed::field;

/// The swap for pages that a memory limit evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapKind {
    /// Compressed memory, by lz4. It is not charged to the group.
    Zram,
    /// A file on this host's disk, or a loop device over one.
    File,
    /// Compressed memory in front of such a file. Its compressed size is charged to a cgroup of version 2,
    /// not to one of version 1.
    Zswap,
}

impl SwapKind {
    const ALL: [Self; 3] = [Self::Zram, Self::File, Self::Zswap];

    /// Its name: `zram`, `file`, `zswap`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zram => "zram",
            Self::File => "file",
            Self::Zswap => "zswap",
        }
    }
}

impl fmt::Display for SwapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SwapKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| format!("no kind of swap: {name:?}; there are zram, file and zswap"))
    }
}

/// Swap that is set up for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// What it is.
    pub kind: SwapKind,
    /// Its size, before compression.
    pub bytes: u64,
}

/// The swap traffic while the program ran. Pages are the whole host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapTruth {
    /// The device or file.
    pub device: PathBuf,
    /// The compressor: `lz4`. None for a file.
    pub compressor: Option<String>,
    /// Pages in and out.
    pub pages: SwapPages,
    /// The largest sample of the pool of zram or zswap. Other programs of the host may have some of it:
    /// [`LimitTruth::peak_swapped`](crate::LimitTruth::peak_swapped) is the group's own.
    pub fullest: Option<Compressed>,
}

/// Counters of `/proc/vmstat`: pages of the whole host. One that this kernel does not have is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapPages {
    /// Read from the device, zram among them: `pswpin`.
    pub read: u64,
    /// Written to the device: `pswpout`.
    pub written: u64,
    /// Read from zswap's pool: `zswpin`.
    pub zswap_read: u64,
    /// Written to zswap's pool: `zswpout`.
    pub zswap_written: u64,
    /// Written from zswap's pool to the device: `zswpwb`.
    pub zswap_written_back: u64,
    /// Full of zeros, and so not read from anywhere: `swpin_zero`.
    pub zeros_read: u64,
    /// Full of zeros, and so not written anywhere: `swpout_zero`.
    pub zeros_written: u64,
}

impl SwapPages {
    /// Since the host started.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    fn parse(vmstat: &str) -> Self {
        let count = |name| field(vmstat, name);
        Self {
            read: count("pswpin"),
            written: count("pswpout"),
            zswap_read: count("zswpin"),
            zswap_written: count("zswpout"),
            zswap_written_back: count("zswpwb"),
            zeros_read: count("swpin_zero"),
            zeros_written: count("swpout_zero"),
        }
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            read: self.read.saturating_sub(earlier.read),
            written: self.written.saturating_sub(earlier.written),
            zswap_read: self.zswap_read.saturating_sub(earlier.zswap_read),
            zswap_written: self.zswap_written.saturating_sub(earlier.zswap_written),
            zswap_written_back: self.zswap_written_back.saturating_sub(earlier.zswap_written_back),
            zeros_read: self.zeros_read.saturating_sub(earlier.zeros_read),
            zeros_written: self.zeros_written.saturating_sub(earlier.zeros_written),
        }
    }
}

/// The contents of a pool of compressed pages. In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compressed {
    /// Of pages, uncompressed: `orig_data_size`, or `Zswapped` of `/proc/meminfo`.
    pub original: u64,
    /// Of them compressed: `compr_data_size`, or `Zswap`.
    pub compressed: u64,
    /// Of memory that the pool took: `mem_used_total`, or `Zswap`.
    pub used: u64,
    /// Pages that repeat one word, of which only that is kept. Of zram.
    pub same_pages: u64,
    /// Pages that did not become smaller, and are kept as they are. Of zram.
    pub huge_pages: u64,
}

impl Compressed {
    /// The line of `mm_stat`.
    fn of_zram(line: &str) -> Option<Self> {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse().ok());
        Some(Self {
            original: numbers.next()?,
            compressed: numbers.next()?,
            used: numbers.next()?,
            // Between them: the pool's limit, its peak, and pages that were moved.
            same_pages: numbers.nth(2)?,
            huge_pages: numbers.nth(1)?,
        })
    }

    /// Of `/proc/meminfo`.
    fn of_zswap(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Some(value?.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        let used = bytes("Zswap")?;
        Some(Self { original: bytes("Zswapped")?, compressed: used, used, ..Self::default() })
    }
}

/// Follows the pool while the program runs.
#[derive(Debug)]
pub(crate) struct Pool {
    device: PathBuf,
    source: Option<Source>,
    before: SwapPages,
    fullest: Option<Compressed>,
}

#[derive(Debug)]
enum Source {
    /// The file `mm_stat`.
    Zram(PathBuf),
    Zswap,
}

impl Pool {
    pub(crate) fn of(kind: SwapKind, device: &Path) -> Self {
        let source = match kind {
            SwapKind::File => None,
            SwapKind::Zswap => Some(Source::Zswap),
            SwapKind::Zram => {
                let name = device.file_name().unwrap_or_default();
                Some(Source::Zram(Path::new("/sys/block").join(name).join("mm_stat")))
            }
        };
        Self { device: device.to_owned(), source, before: SwapPages::now(), fullest: None }
    }

    pub(crate) fn sample(&mut self) {
        let read = |file: &Path| fs::read_to_string(file).unwrap_or_default();
        let now = match &self.source {
            None => None,
            Some(Source::Zram(file)) => Compressed::of_zram(&read(file)),
            Some(Source::Zswap) => Compressed::of_zswap(&read(Path::new("/proc/meminfo"))),
        };
        if let Some(now) = now
            && self.fullest.is_none_or(|most| now.original > most.original)
        {
            self.fullest = Some(now);
        }
    }

    pub(crate) fn finish(self, compressor: Option<String>) -> SwapTruth {
        let pages = SwapPages::now().since(&self.before);
        SwapTruth { device: self.device, compressor, pages, fullest: self.fullest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names() {
        for kind in SwapKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("disk".parse::<SwapKind>().unwrap_err().contains("zram, file and zswap"));
    }

    #[test]
    fn the_fields_of_zram() {
        let line = "33554432 1234567 1300000        0  1400000       12       34       56       78\n";
        let expected = Compressed {
            original: 33_554_432,
            compressed: 1_234_567,
            used: 1_300_000,
            same_pages: 12,
            huge_pages: 56,
        };
        assert_eq!(Compressed::of_zram(line), Some(expected));
        assert_eq!(Compressed::of_zram(""), None);
    }

    #[test]
    fn the_pool_of_zswap() {
        let text = "MemTotal:  100 kB\nZswap:              20 kB\nZswapped:          64 kB\n";
        let pool = Compressed::of_zswap(text).unwrap();
        assert_eq!((pool.original, pool.compressed, pool.used), (64 << 10, 20 << 10, 20 << 10));
        assert_eq!(Compressed::of_zswap("MemTotal:  100 kB\n"), None);
    }

    #[test]
    fn pages_that_went_through() {
        let before = SwapPages::parse("pswpin 5\npswpout 6\nswpin_zero 7\n");
        let after = SwapPages::parse("pswpin 15\npswpout 106\nswpin_zero 8\nzswpout 3\n");
        let expected =
            SwapPages { read: 10, written: 100, zeros_read: 1, zswap_written: 3, ..Default::default() };
        assert_eq!(after.since(&before), expected);
    }
}
