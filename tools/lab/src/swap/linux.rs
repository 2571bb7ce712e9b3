//! The host's Linux, swapping to a compressed device of its own.
//!
//! The process that measures makes the device in its first round and removes it when it exits, also when the
//! requester is gone by then. Nothing is touched that was there before: where any swap is in use already,
//! nothing is done.

use super::stage::{Contents, Patterns, timed};
use super::table::Case;
use crate::folios::{Folios, pages};
use crate::linux::{Area, Control, Linux, RoundFigures, Work, round_figures};
use core::ffi::CStr;
use quire_arch::PAGE_SIZE;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{pwrite, read, write};

const PAGE: usize = PAGE_SIZE as usize;
/// Text without allocation.
type Text = arrayvec::ArrayString<64>;

/// A path that ends as C wants it.
fn path(text: core::fmt::Arguments<'_>) -> Option<Text> {
    let mut path = Text::new();
    core::fmt::Write::write_fmt(&mut path, format_args!("{text}\0")).ok()?;
    Some(path)
}

fn c(text: &Text) -> Option<&CStr> {
    CStr::from_bytes_until_nul(text.as_bytes()).ok()
}

fn put(file: &CStr, text: &[u8]) -> Option<()> {
    let file = open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    (write(&file, text).ok()? == text.len()).then_some(())
}

/// A zram device that is in use as swap.
#[derive(Debug)]
struct Zram {
    number: u32,
    on: bool,
}

impl Zram {
    /// Makes one for `bytes`. `None` where the host does not let us.
    fn make(bytes: u64) -> Option<Self> {
        let control =
            open(c"/sys/class/zram-control/hot_add", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut text = [0; 16];
        let len = read(control.ok()?, &mut text).ok()?;
        let number = core::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()?;
        let mut made = Self { number, on: false };
        if made.turn_on(bytes).is_none() {
            made.remove();
            return None;
        }
        Some(made)
    }

    fn attribute(&self, name: &str) -> Option<Text> {
        path(format_args!("/sys/block/zram{}/{name}", self.number))
    }

    fn node(&self) -> Option<Text> {
        path(format_args!("/dev/zram{}", self.number))
    }

    fn turn_on(&mut self, bytes: u64) -> Option<()> {
        // The codec of Quire's device; where it does not exist, the default one.
        let _ = put(c(&self.attribute("comp_algorithm")?)?, b"lz4");
        let mut size = Text::new();
        core::fmt::Write::write_fmt(&mut size, format_args!("{}", bytes + PAGE_SIZE)).ok()?;
        put(c(&self.attribute("disksize")?)?, size.as_bytes())?;
        let node = self.node()?;
        {
            let mut header = [0; PAGE];
            let last = u32::try_from(pages(bytes)).ok()?;
            header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
            header[1028..1032].copy_from_slice(&last.to_ne_bytes());
            header[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
            let device = open(c(&node)?, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            (pwrite(&device, &header, 0).ok()? == PAGE).then_some(())?;
        }
        // SAFETY: the path ends with a zero; the device is this process's own.
        self.on = unsafe { libc::swapon(c(&node)?.as_ptr(), 0) } == 0;
        self.on.then_some(())
    }

    fn remove(&mut self) {
        if self.on
            && let Some(node) = self.node()
            && let Some(node) = c(&node)
        {
            // SAFETY: as in `turn_on`.
            self.on = unsafe { libc::swapoff(node.as_ptr()) } != 0;
        }
        if self.on {
            return;
        }
        if let Some(reset) = self.attribute("reset")
            && let Some(reset) = c(&reset)
        {
            let _ = put(reset, b"1");
        }
        if let Some(number) = path(format_args!("{}", self.number)) {
            let _ = put(c"/sys/class/zram-control/hot_remove", number.trim_end_matches('\0').as_bytes());
        }
    }
}

/// Whether this process may make a device, and no swap is in use.
fn may_swap() -> bool {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    rustix::process::geteuid().is_root()
        && swaps.lines().count() == 1
        && std::path::Path::new("/sys/class/zram-control/hot_add").exists()
}

/// Quire's job, in a process of Linux's.
#[derive(Debug)]
pub(super) struct Swapping {
    case: Case,
    patterns: Patterns,
    control: Control,
    area: Option<Area>,
    device: Option<Zram>,
    round: u64,
}

impl Swapping {
    /// Starts the process. `None` where it cannot be done.
    pub(super) fn start(case: &Case) -> Option<Linux> {
        if !may_swap() {
            return None;
        }
        let (patterns, control) = (Patterns::of(case.contents), Control::of(case.folios));
        let work = Self { case: *case, patterns, control, area: None, device: None, round: 0 };
        let kept = if case.contents == Contents::Zeros { 0 } else { case.bytes };
        Linux::start(8 * (case.window + kept) + case.bytes / 64, work)
    }

    fn fill(&self, part: Area) -> Option<()> {
        let set = self.control.set()?;
        let had = set.made();
        let huge = self.case.folios == Folios::PMD;
        part.advise(if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE })?;
        let first = self.round * pages(self.case.window);
        part.write_pages(|page, into| {
            let page = first + page;
            if let Some(bytes) = self.patterns.page(page) {
                into.copy_from_slice(bytes);
            }
            into[..8].copy_from_slice(&self.patterns.first_word(page).to_ne_bytes());
        });
        let made = set.made().wrapping_sub(had);
        (!huge || made >= self.case.folios.in_bytes(self.case.window)).then_some(())
    }
}

impl Work for Swapping {
    fn round(&mut self) -> Option<RoundFigures> {
        if self.device.is_none() {
            self.device = Some(Zram::make(self.case.bytes + (64 << 20))?);
            self.area = Some(Area::empty(self.case.bytes)?);
        }
        let windows = self.case.windows();
        let window = self.case.window as usize;
        let part = self.area?.part((self.round % windows) as usize * window, window);
        let of_a_page = |time: f64| time / pages(self.case.window) as f64;
        let time = if self.round < windows {
            self.fill(part)?;
            let (out, time) = timed(|| part.advise(libc::MADV_PAGEOUT));
            out?;
            time
        } else {
            let ((), time) = timed(|| part.read());
            part.advise(libc::MADV_DONTNEED)?;
            time
        };
        self.round += 1;
        Some(round_figures(time.map(of_a_page)))
    }

    fn end(&mut self) {
        if let Some(area) = self.area.take() {
            // Swapped pages need not be read back.
            area.unmap();
        }
        if let Some(device) = &mut self.device {
            device.remove();
        }
    }
}
