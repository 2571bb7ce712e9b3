//! A machine with a swap device.

use crate::error::LabError;
use crate::experiment::found_by;
use crate::folios::Folios;
use crate::linux::{cpu_time, now};
use crate::site::{HostSpace, RW, START, Site};
use core::ops::Deref;
use quire_arch::{PAGE_SIZE, Platform, VirtAddr};
use quire_host::HostPlatform;
use quire_mm::{
    memcg::Limit,
    space::{Advice, MapFlags, MapRequest},
    swap::{CompressedRam, DeviceId, Lz4, SwapDevice, SwapOnOptions, SwapReport, SwapTechnique},
};

/// The contents of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// Nothing but zeros.
    Zeros,
    /// A number, then nothing but zeros.
    Numbers,
    /// Half of it is random: compresses to about that.
    Half,
    /// Only random bytes.
    Noise,
}

const PAGE: usize = PAGE_SIZE as usize;
/// Pages of random bytes that differ.
const PATTERNS: usize = 16;

/// Pages to write, each of which gets its own number in front.
#[derive(Debug)]
pub(super) struct Patterns {
    pages: Vec<[u8; PAGE]>,
    numbered: bool,
}

impl Patterns {
    /// Those of `contents`, the same in each run; none for zeros.
    pub(super) fn of(contents: Contents) -> Self {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        let noise = match contents {
            Contents::Zeros => return Self { pages: Vec::new(), numbered: false },
            Contents::Numbers => return Self { pages: Vec::new(), numbered: true },
            Contents::Half => PAGE / 2,
            Contents::Noise => PAGE,
        };
        let page = |_| {
            let mut page = [0; PAGE];
            page[..noise].iter_mut().for_each(|byte| *byte = random.u8(..));
            page
        };
        Self { pages: (0..PATTERNS).map(page).collect(), numbered: true }
    }

    /// What page `number` holds, but for its first word.
    pub(super) fn page(&self, number: u64) -> Option<&[u8; PAGE]> {
        let count = self.pages.len().max(1) as u64;
        self.pages.get((number % count) as usize)
    }

    /// What the first word of page `number` is.
    pub(super) fn first_word(&self, number: u64) -> u64 {
        if self.numbered { number + 1 } else { 0 }
    }
}

/// A machine under one strategy with one swap device, and a space that is mapped at [`START`].
#[derive(Debug)]
pub(super) struct Stage {
    site: Site<SwapTechnique>,
    device: DeviceId,
}

impl Deref for Stage {
    type Target = Site<SwapTechnique>;

    fn deref(&self) -> &Site<SwapTechnique> {
        &self.site
    }
}

/// Calls `measure` with a stage for each strategy and with the program, of `bytes` bytes and limited to
/// `limit`, that runs on it, then ends the programs and the stages. Returns also what is wrong with these.
pub(super) fn on_stages<R>(
    (bytes, limit): (u64, Option<u64>),
    stage: impl Fn(SwapTechnique) -> Result<Stage, LabError>,
    measure: impl FnOnce(&[(&Stage, HostSpace<'_>)]) -> Result<R, LabError>,
) -> Result<(R, Vec<String>), LabError> {
    let stages = SwapTechnique::ALL.into_iter().map(stage).collect::<Result<Vec<_>, _>>()?;
    let programs = stages
        .iter()
        .map(|stage| Ok((stage, stage.program(bytes, limit)?)))
        .collect::<Result<Vec<_>, LabError>>()?;
    let measured = measure(&programs)?;
    for (stage, space) in programs {
        stage.run(|| drop(space));
    }
    let findings = stages.into_iter().flat_map(|stage| found_by(stage.technique, stage.end()));
    Ok((measured, findings.collect()))
}

/// The place of a page.
pub(super) fn page_at(page: u64) -> VirtAddr {
    VirtAddr(START.0 + page * PAGE_SIZE)
}

/// How long something took, in nanoseconds: on the clock, and on the CPU.
pub(super) fn timed<R>(work: impl FnOnce() -> R) -> (R, [f64; 2]) {
    let (start, cpu) = (now(), cpu_time());
    let result = work();
    (result, [(now() - start) as f64, (cpu_time() - cpu) as f64])
}

impl Stage {
    /// A machine with memory for `bytes`, and the device that `make` makes.
    pub(super) fn new<D: SwapDevice<HostPlatform>>(
        technique: SwapTechnique,
        (bytes, cpus): (u64, usize),
        folios: Folios,
        make: impl FnOnce(&Site<SwapTechnique>) -> Result<D, LabError>,
    ) -> Result<Self, LabError> {
        let site = Site::new(technique, bytes, cpus, folios.config())?;
        let made = site.run(|| make(&site))?;
        let device = site
            .run(|| site.machine().memory().swapon(made, SwapOnOptions::default()))
            .map_err(LabError::SwapOn)?;
        Ok(Self { site, device })
    }

    /// The same with a device of `slots` slots in compressed RAM.
    pub(super) fn compressed(
        technique: SwapTechnique,
        room: (u64, usize),
        folios: Folios,
        slots: u64,
    ) -> Result<Self, LabError> {
        Self::new(technique, room, folios, |site| {
            Ok(CompressedRam::new(site.machine().memory().frames(), slots, Lz4)?)
        })
    }

    /// Maps `bytes` at [`START`] in a new space, whose memory is limited to `limit`.
    pub(super) fn program(&self, bytes: u64, limit: Option<u64>) -> Result<HostSpace<'_>, LabError> {
        let space = self.site.space()?;
        if let Some(limit) = limit {
            self.site.run(|| -> Result<(), LabError> {
                let memcgs = self.site.machine().memory().memcgs();
                let memcg = memcgs
                    .lifecycle()
                    .create(quire_mm::memcg::MemcgId::ROOT, "limited")
                    .map_err(LabError::Memcg)?;
                // Nothing is charged yet.
                let _ = memcgs.files().set(memcg, Limit::Max, Some(limit)).map_err(LabError::Memcg)?;
                space.set_memcg(memcg).map_err(|error| LabError::Memcg(error.0))
            })?;
        }
        let request = MapRequest::anonymous(bytes, RW).at(START, MapFlags::FIXED_NOREPLACE);
        self.site.run(|| space.mmap(&request))?;
        Ok(space)
    }

    /// Fills `pages` pages from page `first` on.
    pub(super) fn fill(
        &self,
        space: &HostSpace<'_>,
        (first, pages): (u64, u64),
        patterns: &Patterns,
    ) -> Result<(), LabError> {
        self.site.vcpu().program(space).inside(|guest| {
            for page in first..first + pages {
                let addr = page_at(page);
                if let Some(bytes) = patterns.page(page) {
                    guest.write(addr, bytes).map_err(|error| LabError::Access(addr, error))?;
                }
                guest
                    .write_u64(addr, patterns.first_word(page))
                    .map_err(|error| LabError::Access(addr, error))?;
            }
            Ok(())
        })
    }

    /// `MADV_PAGEOUT`.
    pub(super) fn page_out(&self, space: &HostSpace<'_>, first: u64, pages: u64) -> Result<(), LabError> {
        Ok(self.site.run(|| space.madvise(page_at(first), pages * PAGE_SIZE, Advice::PageOut))?)
    }

    /// `MADV_DONTNEED`.
    pub(super) fn drop_pages(&self, space: &HostSpace<'_>, first: u64, pages: u64) -> Result<(), LabError> {
        Ok(self.site.run(|| space.madvise(page_at(first), pages * PAGE_SIZE, Advice::DontNeed))?)
    }

    /// Reads a word of each page. Returns how many are not what was written.
    pub(super) fn read(
        &self,
        space: &HostSpace<'_>,
        (first, pages): (u64, u64),
        patterns: &Patterns,
    ) -> Result<u64, LabError> {
        self.site.vcpu().program(space).inside(|guest| {
            let mut wrong = 0;
            for page in first..first + pages {
                let addr = page_at(page);
                let word = guest.read_u64(addr).map_err(|error| LabError::Access(addr, error))?;
                wrong += u64::from(word != patterns.first_word(page));
            }
            Ok(wrong)
        })
    }

    /// The figures of the device.
    pub(super) fn report(&self) -> Option<SwapReport> {
        self.site.run(|| self.site.machine().memory().swap().devices().reports().next())
    }

    /// The device's number.
    pub(super) fn device(&self) -> DeviceId {
        self.device
    }

    /// Ends the experiment, after the space has exited. Returns what is wrong.
    pub(super) fn end(self) -> Vec<String> {
        let memory = self.site.machine().memory();
        let mut findings = Vec::new();
        if let Err(error) = self.site.run(|| memory.swapoff(self.device, || true))
            && error != quire_mm::swap::SwapOffError::NotOn
        {
            findings.push(format!("swapoff: {error}"));
        }
        if let Some(memcg) = memory.memcgs().tree().find("/limited") {
            // A space that has exited drops its memcg when no reader can have it any more.
            self.site.run(|| memory.frames().limbo().reap_all(&memory.platform().pin()));
            if let Err(error) = self.site.run(|| memory.memcgs().lifecycle().remove(memcg)) {
                findings.push(format!("the memcg: {error}"));
            }
            // A look may have to leave the end of the memcg to the next one.
            (0..4).for_each(|_| self.site.run(|| memory.memcgs().lifecycle().sweep()));
        }
        findings.extend(self.site.findings());
        findings
    }
}
