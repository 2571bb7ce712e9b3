//! `/sys/kernel/mm/transparent_hugepage`: the controls of large folios, and their counters by size.

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{Order, OrderSet, Platform};
use quire_file::{ShmemEnabled, ShmemSizeEnabled};
use quire_frame::FolioCounter;
use quire_space::khugepaged_totals;
use quire_space::{Errno, HugeDefrag, HugeEnabled, KhugepagedSetting, SizeEnabled};

/// A file of `/sys/kernel/mm/transparent_hugepage`. Its `Display` is the path below that folder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HugeFile {
    /// `enabled`.
    Enabled,
    /// `defrag`.
    Defrag,
    /// `use_zero_page`.
    UseZeroPage,
    /// `shrink_underused`.
    ShrinkUnderused,
    /// `hpage_pmd_size`: bytes that a PMD entry maps. Cannot be written.
    PmdSize,
    /// `shmem_enabled`.
    ShmemEnabled,
    /// `enabled` of the folder of one size.
    Size(Order),
    /// `shmem_enabled` of the folder of one size.
    ShmemSize(Order),
    /// A file in the folder `stats` of one size. Cannot be written.
    Counter(Order, FolioCounter),
    /// A file of the folder `khugepaged`.
    Khugepaged(KhugepagedSetting),
    /// `khugepaged/full_scans`: full scans of all spaces. Cannot be written.
    FullScans,
    /// `khugepaged/pages_collapsed`: blocks that were collapsed. Cannot be written.
    PagesCollapsed,
}

impl fmt::Display for HugeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enabled => f.write_str("enabled"),
            Self::Defrag => f.write_str("defrag"),
            Self::UseZeroPage => f.write_str("use_zero_page"),
            Self::ShrinkUnderused => f.write_str("shrink_underused"),
            Self::PmdSize => f.write_str("hpage_pmd_size"),
            Self::ShmemEnabled => f.write_str("shmem_enabled"),
            Self::Size(order) => write!(f, "hugepages-{}kB/enabled", order.bytes() >> 10),
            Self::ShmemSize(order) => write!(f, "hugepages-{}kB/shmem_enabled", order.bytes() >> 10),
            Self::Counter(order, counter) => {
                write!(f, "hugepages-{}kB/stats/{}", order.bytes() >> 10, counter.name())
            }
            Self::Khugepaged(setting) => write!(f, "khugepaged/{}", setting.name()),
            Self::FullScans => f.write_str("khugepaged/full_scans"),
            Self::PagesCollapsed => f.write_str("khugepaged/pages_collapsed"),
        }
    }
}

impl HugeFile {
    /// Every file.
    #[doc(hidden)]
    pub fn all() -> impl Iterator<Item = Self> {
        // Anonymous folios have more than two pages, and so there is less to say of those that have two.
        let sizes = OrderSet::SHMEM.iter().flat_map(|order| {
            let is_anonymous = OrderSet::ANONYMOUS.contains(order);
            let counters = FolioCounter::ALL
                .iter()
                .filter(move |counter| is_anonymous || !counter.is_of_anonymous())
                .map(move |&counter| Self::Counter(order, counter));
            let enabled = is_anonymous.then_some(Self::Size(order));
            enabled.into_iter().chain([Self::ShmemSize(order)]).chain(counters)
        });
        [
            Self::Enabled,
            Self::Defrag,
            Self::UseZeroPage,
            Self::ShrinkUnderused,
            Self::PmdSize,
            Self::ShmemEnabled,
        ]
        .into_iter()
        .chain(KhugepagedSetting::ALL.iter().map(|&setting| Self::Khugepaged(setting)))
        .chain([Self::FullScans, Self::PagesCollapsed])
        .chain(sizes)
    }

    /// The file at `path`, e.g. `hugepages-64kB/enabled`.
    ///
    /// # Errors
    ///
    /// [`Errno::ENOENT`].
    pub fn find(path: &str) -> Result<Self, Errno> {
        Self::all().find(|file| is_written_as(file, path)).ok_or(Errno::ENOENT)
    }

    /// Whether it can be written.
    #[doc(hidden)]
    pub const fn is_writable(self) -> bool {
        !matches!(self, Self::PmdSize | Self::Counter(..) | Self::FullScans | Self::PagesCollapsed)
    }

    /// Writes what a program reads there.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn read<P: Platform>(self, memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
        let huge = memory.parts().huge();
        let policy = huge.policy();
        let shmem = memory.parts().page_cache().files().shmem_huge();
        match self {
            Self::ShmemEnabled => words(ShmemEnabled::ALL, shmem.enabled(), ShmemEnabled::name, out),
            Self::ShmemSize(order) => {
                words(ShmemSizeEnabled::ALL, shmem.size(order), ShmemSizeEnabled::name, out)
            }
            Self::Enabled => words(HugeEnabled::ALL, policy.enabled(), HugeEnabled::name, out),
            Self::Defrag => words(HugeDefrag::ALL, policy.defrag(), HugeDefrag::name, out),
            Self::Size(order) => words(SizeEnabled::ALL, policy.size(order), SizeEnabled::name, out),
            Self::UseZeroPage => writeln!(out, "{}", u8::from(policy.zero_page())),
            Self::ShrinkUnderused => writeln!(out, "{}", u8::from(policy.shrink_underused())),
            Self::PmdSize => writeln!(out, "{}", Order::PMD.bytes()),
            Self::Counter(order, counter) => {
                writeln!(out, "{}", memory.parts().frames().events().folios(order, counter))
            }
            Self::Khugepaged(setting) => writeln!(out, "{}", huge.khugepaged(setting)),
            Self::FullScans => writeln!(out, "{}", khugepaged_totals(memory.parts()).0),
            Self::PagesCollapsed => writeln!(out, "{}", khugepaged_totals(memory.parts()).1),
        }
    }

    /// Does what Linux does when a program writes `text` there in one call: one trailing newline is allowed,
    /// text after a NUL is ignored, and an empty text changes nothing.
    ///
    /// # Errors
    ///
    /// [`Errno::EACCES`] for a read-only file, [`Errno::EINVAL`] and [`Errno::ERANGE`] for an invalid value.
    /// Nothing is changed then.
    pub fn write<P: Platform>(self, memory: &Memory<P>, text: impl AsRef<[u8]>) -> Result<(), Errno> {
        let text = text.as_ref();
        if text.is_empty() && self.is_writable() {
            return Ok(());
        }
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        self.set(memory, text.strip_suffix(b"\n").unwrap_or(text))
    }

    fn set<P: Platform>(self, memory: &Memory<P>, line: &[u8]) -> Result<(), Errno> {
        let (huge, files) = (memory.parts().huge(), memory.parts().page_cache().files());
        match self {
            Self::ShmemEnabled => {
                let enabled = word(ShmemEnabled::ALL, ShmemEnabled::name, line)?;
                files.change_shmem_huge(|huge| huge.with_enabled(enabled)).map_err(|_| Errno::EINVAL)?;
            }
            Self::ShmemSize(order) => {
                let enabled = word(ShmemSizeEnabled::ALL, ShmemSizeEnabled::name, line)?;
                files.change_shmem_huge(|huge| huge.with_size(order, enabled)).map_err(|_| Errno::EINVAL)?;
            }
            Self::Enabled => {
                let enabled = word(HugeEnabled::ALL, HugeEnabled::name, line)?;
                huge.change(|policy| policy.with_enabled(enabled));
            }
            Self::Defrag => {
                let defrag = word(HugeDefrag::ALL, HugeDefrag::name, line)?;
                huge.change(|policy| policy.with_defrag(defrag));
            }
            Self::Size(order) => {
                let enabled = word(SizeEnabled::ALL, SizeEnabled::name, line)?;
                huge.change(|policy| policy.with_sizes(OrderSet::of(order), enabled));
            }
            Self::UseZeroPage => {
                let on = bit(line)?;
                huge.change(|policy| policy.with_zero_page(on));
            }
            Self::ShrinkUnderused => {
                let on = truth(line)?;
                huge.change(|policy| policy.with_shrink_underused(on));
            }
            Self::Khugepaged(KhugepagedSetting::Defrag) => {
                let on = u32::from(bit(line)?);
                huge.set_khugepaged(KhugepagedSetting::Defrag, on).map_err(|_| Errno::EINVAL)?;
            }
            // Here Linux has one error for all causes.
            Self::Khugepaged(setting) => {
                let value = number(line).ok().and_then(|value| value.try_into().ok()).ok_or(Errno::EINVAL)?;
                huge.set_khugepaged(setting, value).map_err(|_| Errno::EINVAL)?;
            }
            Self::PmdSize | Self::Counter(..) | Self::FullScans | Self::PagesCollapsed => {
                return Err(Errno::EACCES);
            }
        }
        Ok(())
    }
}

/// Writes all words in a line, with brackets around the current one.
fn words<T: Copy + PartialEq>(
    all: &[T],
    chosen: T,
    name: fn(T) -> &'static str,
    out: &mut impl Write,
) -> fmt::Result {
    for (place, &choice) in all.iter().enumerate() {
        let separator = if place > 0 { " " } else { "" };
        let name = name(choice);
        if choice == chosen { write!(out, "{separator}[{name}]")? } else { write!(out, "{separator}{name}")? }
    }
    writeln!(out)
}

/// The choice whose word `line` is.
fn word<T: Copy>(all: &[T], name: fn(T) -> &'static str, line: &[u8]) -> Result<T, Errno> {
    all.iter().copied().find(|&choice| name(choice).as_bytes() == line).ok_or(Errno::EINVAL)
}

/// The decimal number that `line` is; it may have a plus sign. An overflow is distinguished from invalid
/// text, even if something else follows the number.
fn number(line: &[u8]) -> Result<u64, Errno> {
    let digits = line.strip_prefix(b"+").unwrap_or(line);
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return Err(Errno::EINVAL);
    }
    let add = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    let number = digits[..end].iter().try_fold(0, add).ok_or(Errno::ERANGE)?;
    if end == digits.len() { Ok(number) } else { Err(Errno::EINVAL) }
}

/// 0 or 1.
fn bit(line: &[u8]) -> Result<bool, Errno> {
    match number(line)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// Yes or no in the ways that Linux knows. Only the first letter counts; after an `o` the second too.
fn truth(line: &[u8]) -> Result<bool, Errno> {
    match line {
        [b'y' | b'Y' | b't' | b'T' | b'e' | b'E' | b'1', ..] | [b'o' | b'O', b'n' | b'N', ..] => Ok(true),
        [b'n' | b'N' | b'f' | b'F' | b'd' | b'D' | b'0', ..] | [b'o' | b'O', b'f' | b'F', ..] => Ok(false),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether `value` is written as `text`.
fn is_written_as(value: impl fmt::Display, text: &str) -> bool {
    /// What is left of the text.
    struct Rest<'t>(&'t str);

    impl Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }

    let mut rest = Rest(text);
    write!(rest, "{value}").is_ok() && rest.0.is_empty()
}
