//! Reading the texts of /proc.

use crate::observation::{Detail, Figures};
use quire_mm::{proc::SMAPS_MNEMONICS, space::VmFlags};

/// Flags that Linux shows; the others are Quire's own.
pub(crate) fn shown_flags() -> VmFlags {
    SMAPS_MNEMONICS.iter().fold(VmFlags::empty(), |all, (flag, _)| all | *flag)
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

/// The number in a line of the form `Name:   123 kB`.
fn kib(rest: &str) -> u64 {
    rest.bytes()
        .skip_while(u8::is_ascii_whitespace)
        .map_while(|byte| (byte as char).to_digit(10))
        .fold(0, |number, digit| number * 10 + u64::from(digit))
}

/// The header of a mapping in `maps` and `smaps`: start, end and whether there is an inode.
fn header(line: &str) -> Option<(u64, u64, bool)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let inode = rest.split_ascii_whitespace().nth(3).unwrap_or("0");
    Some((hex(start)?, hex(end)?, inode != "0"))
}

/// The mappings in a text of `smaps`, with whether they show a file. What lies outside of user space is left
/// out, and so is a line that the text ends in the middle of.
pub(crate) fn smaps(text: &str, mut visit: impl FnMut(Detail, bool)) {
    let mut detail: Option<(Detail, bool)> = None;
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        // Most lines are of no interest, and there are many: the first letters sort them.
        match line.as_bytes().first() {
            Some(b'0'..=b'9' | b'a'..=b'f') => {
                let header = header(line).filter(|(_, end, _)| *end < 1 << 47);
                detail = header.map(|(start, end, file)| (Detail { start, end, ..Detail::default() }, file));
            }
            Some(b'R' | b'A' | b'S' | b'T' | b'V') => {
                let Some((detail, file)) = &mut detail else { continue };
                if let Some(rest) = line.strip_prefix("Rss:") {
                    detail.resident = kib(rest);
                } else if let Some(rest) = line.strip_prefix("Anonymous:") {
                    detail.anonymous = kib(rest);
                } else if let Some(rest) = line.strip_prefix("Swap:") {
                    detail.swapped = kib(rest);
                } else if let Some(rest) = line.strip_prefix("AnonHugePages:") {
                    detail.large = kib(rest);
                } else if let Some(rest) = line.strip_prefix("THPeligible:") {
                    detail.eligible = kib(rest) != 0;
                } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                    for word in flags.split_ascii_whitespace() {
                        if let Some((flag, _)) = SMAPS_MNEMONICS.iter().find(|(_, name)| *name == word) {
                            detail.flags |= *flag;
                        }
                    }
                    visit(*detail, *file);
                }
            }
            _ => {}
        }
    }
}

/// The lines of `status` that are compared.
pub(crate) fn status(text: &str) -> Figures {
    let mut figures = Figures::default();
    for line in text.lines().filter(|line| line.starts_with("Vm")) {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let slot = match name {
            "VmSize" => &mut figures.size,
            "VmPeak" => &mut figures.peak,
            "VmLck" => &mut figures.locked,
            "VmData" => &mut figures.data,
            "VmStk" => &mut figures.stack,
            "VmPTE" => &mut figures.tables,
            "VmPin" => &mut figures.pinned,
            "VmSwap" => &mut figures.swapped,
            _ => continue,
        };
        *slot = kib(rest);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_read_from_smaps() {
        let text = "7ffff0000-7ffff2000 rw-p 00000000 00:00 0 \nSize:  8 kB\nRss:    4 kB\nAnonymous:    4 kB\n\
                    AnonHugePages:  2048 kB\nSwap:   0 kB\nTHPeligible:    1\nVmFlags: rd wr mr mw me ac \n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\nRss: 0 kB\nVmFlags: ex \n";
        let mut seen = Vec::new();
        smaps(text, |detail, file| seen.push((detail, file)));
        let [(detail, false)] = seen[..] else { panic!("{seen:?}") };
        assert_eq!((detail.start, detail.resident, detail.large), (0x7_ffff_0000, 4, 2048));
        assert!(detail.eligible && detail.flags.is_data());
        let Some((cut, _)) = text.split_once(" ac") else { panic!("{text}") };
        smaps(cut, |detail, _| panic!("{detail:?} is not all there"));
    }

    #[test]
    fn figures_are_read_from_status() {
        let figures = status("Name:\tx\nVmPeak:\t 12 kB\nVmSize:\t 11 kB\nVmPTE:\t   44 kB\nThreads: 1\n");
        assert_eq!((figures.size, figures.peak, figures.tables, figures.data), (11, 12, 44, 0));
    }
}
