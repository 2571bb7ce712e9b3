//! The whole of a machine's memory.

mod audit;
mod devices;
#[cfg(feature = "internals")]
mod internals;

pub use audit::{AuditSummary, InUse, Violation};

use crate::shm::ShmNamespace;
use crate::techniques::Techniques;
use core::fmt;
use quire_arch::{Order, PagingFormat, Pfn, Pin, Platform};
use quire_file::{FileBacking, FileTotals, PageError, ShmemOwner};
use quire_frame::{
    BootError, FailPoints, FolioCounter, Frame, FrameConfig, FramePcp, FrameTotals, Frames, Kind, VmEvent,
};
use quire_memcg::{Limit, MemcgError, MemcgId, MemcgPeak, Memcgs, WriteOutcome};
use quire_reclaim::{KswapdStep, Policy};
use quire_space::{
    Error, File, HugeConfig, HugeControls, KhugepagedStep, Layout, Limits, OomAction, Overcommit, Resident,
    Space, SpaceId, Spaces, SpacesConfig, SwapOffError, for_each_resident,
};
use quire_swap::{DeviceId, Swap, SwapDevice, SwapOnError, SwapOnOptions, SwapTechnique};
use quire_sync::SpinStatistics;

/// How a [`Memory`] is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryConfig {
    /// Which techniques are on.
    pub techniques: Techniques,
    /// The overcommit policy. By default one mapping may be at most as large as RAM plus the swap in use.
    pub overcommit: Overcommit,
    /// Memory that ordinary allocations leave free (`vm.min_free_kbytes`), or Linux's formula.
    pub min_free_kib: Option<u64>,
    /// What happens when memory is exhausted.
    pub oom: OomAction,
    /// When large folios are used; can be changed later ([`Memory::huge`]).
    pub huge: HugeConfig,
    /// Measures how long the zones' locks are held, for [`proc::lock_stat`](crate::proc::lock_stat); each
    /// hold costs two clock reads.
    pub time_locks: bool,
}

/// Why a [`Memory`] could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// The platform is not fit for it: the RAM is too small for the memory map and the first lists, or
    /// another
    /// `Memory` has it.
    #[error("memory could not be taken over: {0}")]
    Boot(BootError),
    /// There were no frames for the first objects of the crates.
    #[error("too little memory to start: {0}")]
    Start(Error),
}

/// One machine's memory: frames, address spaces and what they need.
///
/// All methods may be called from every CPU of the machine at once. Those that take a
/// [`Pin`] do not sleep and may be called in an interrupt; all others may sleep.
///
/// ```
/// # use quire_host::{HostConfig, HostPlatform};
/// use quire_mm::proc;
/// use quire_mm::{Memory, MemoryConfig};
///
/// # let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(16 << 20))?;
/// # let cpu = platform.vcpu(0)?;
/// let config = MemoryConfig { min_free_kib: Some(512), ..MemoryConfig::default() };
/// let memory = Memory::new(platform, config)?;
///
/// // The background work of a kernel: the timer about once a second, kswapd about ten times.
/// memory.tick(&quire_mm::platform::Platform::pin(memory.platform()));
/// assert_eq!(memory.kswapd_step().missing, 0);
///
/// let mut text = String::new();
/// proc::meminfo(&memory, &mut text)?;
/// assert!(text.starts_with("MemTotal:"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Memory<P: Platform> {
    spaces: Spaces<P>,
    techniques: Techniques,
}

/// The least number of pages that a write to `memory.reclaim` reclaims at once.
const RECLAIM_PART: u64 = 32;

impl<P: Platform> Memory<P> {
    /// Takes over the RAM of `platform`, of which it is the only owner until it is dropped. Address spaces
    /// borrow the `Memory`: a kernel keeps it in a `static`.
    ///
    /// # Errors
    ///
    /// [`BuildError`], when the RAM is too small, or another `Memory` has it ([`BootError::RamTaken`]).
    pub fn new(platform: P, config: MemoryConfig) -> Result<Self, BuildError> {
        let frame_config = FrameConfig {
            pcp: config.techniques.pcp,
            min_free_kib: config.min_free_kib,
            time_locks: config.time_locks,
            ..FrameConfig::default()
        };
        let spaces_config = SpacesConfig {
            overcommit: config.overcommit,
            gather: config.techniques.gather,
            tables: config.techniques.tables,
            mremap: config.techniques.mremap,
            huge: config.huge,
            oom: config.oom,
        };
        let lower = Self::lower(platform, frame_config, config.techniques.swap);
        Self::upper(lower, spaces_config, config.techniques)
    }

    /// The spaces over the layers below them, if there are those. Not inlined, so that the whole is not on
    /// the stack below [`lower`](Self::lower); and what that returned is taken apart here, so that it is not
    /// there twice.
    #[inline(never)]
    fn upper(
        lower: Result<Swap<P>, BuildError>,
        config: SpacesConfig,
        techniques: Techniques,
    ) -> Result<Self, BuildError> {
        let files = match &lower {
            Ok(swap) => Spaces::no_files(swap),
            Err(error) => return Err(*error),
        };
        match Spaces::new(lower?, files, config, &Policy) {
            Ok(spaces) => Ok(Self { spaces, techniques }),
            Err(error) => Err(BuildError::Start(error)),
        }
    }

    /// The layers below the spaces. Not inlined, as [`upper`](Self::upper).
    #[inline(never)]
    fn lower(platform: P, config: FrameConfig, technique: SwapTechnique) -> Result<Swap<P>, BuildError> {
        let frames = match Frames::new(platform, config) {
            Ok(frames) => frames,
            Err(error) => return Err(BuildError::Boot(error)),
        };
        match Memcgs::new(frames) {
            Ok(memcgs) => Ok(Swap::new(memcgs, technique)),
            Err(error) => Err(BuildError::Start(error.into())),
        }
    }

    /// The machine.
    pub fn platform(&self) -> &P {
        self.spaces.platform()
    }

    /// The lower layers: address spaces, and through them swap, memcgs and frames.
    pub(crate) fn parts(&self) -> &Spaces<P> {
        &self.spaces
    }

    /// Statistics of the page frames at this moment.
    pub fn totals(&self) -> FrameTotals {
        self.spaces.frames().reports().totals()
    }

    /// Calls `visit` with the resident memory of each address space at this moment.
    #[doc(hidden)]
    pub fn for_each_resident(&self, visit: impl FnMut(SpaceId, Resident)) {
        for_each_resident(&self.spaces, visit);
    }

    /// Bytes of anonymous memory that is mapped, summed over all address spaces at this moment.
    #[doc(hidden)]
    pub fn resident_anonymous(&self) -> u64 {
        let mut bytes = 0;
        self.for_each_resident(|_, resident| bytes += resident.anonymous);
        bytes
    }

    /// Bytes of anonymous memory that PMD entries map at this moment (`AnonHugePages`).
    #[doc(hidden)]
    pub fn huge_mapped(&self) -> u64 {
        self.spaces.frames().events().pmd_mapped() * Order::PMD.bytes()
    }

    /// Blocks that khugepaged and `MADV_COLLAPSE` collapsed so far.
    #[doc(hidden)]
    pub fn collapsed(&self) -> u64 {
        self.spaces.thp().collapsed()
    }

    /// The counter of large folios of `order` (`hugepages-*kB/stats`), on all CPUs.
    #[doc(hidden)]
    pub fn folio_event(&self, order: Order, counter: FolioCounter) -> u64 {
        self.spaces.frames().events().folios(order, counter)
    }

    /// How often `event` happened so far, on all CPUs.
    #[doc(hidden)]
    pub fn event(&self, event: VmEvent) -> u64 {
        self.spaces.frames().events().sum(event)
    }

    /// The kind of frame `pfn` at this moment; `None` where no frame is.
    #[doc(hidden)]
    pub fn frame_kind(&self, pfn: Pfn) -> Option<Kind> {
        self.spaces.frames().frame(pfn).map(Frame::kind)
    }

    /// The fail points, for tests.
    #[doc(hidden)]
    pub fn fail_points(&self) -> &FailPoints {
        self.spaces.frames().fail_points()
    }

    /// The controls of large folios.
    pub fn huge(&self) -> &HugeControls {
        self.spaces.huge()
    }

    /// Leaves the pinned CPU without a space. For a CPU that goes idle or runs the kernel's own threads:
    /// flushes skip it from now on.
    pub fn deactivate(&self, pin: &Pin<'_, P>) {
        self.spaces.deactivate(pin);
    }

    /// Makes a memcg below `parent`.
    ///
    /// # Errors
    ///
    /// As Linux's `mkdir` in a cgroup.
    pub fn create_memcg(&self, parent: MemcgId, name: &str) -> Result<MemcgId, MemcgError> {
        let create = || self.spaces.memcgs().lifecycle().create(parent, name);
        match create() {
            Err(MemcgError::TooMany) if self.spaces.swap().reparenting().free_numbers() => create(),
            made => made,
        }
    }

    /// Removes a memcg. What is charged to it goes to the first one above that was not removed: what is on
    /// its LRU lists at once, the rest within the next removals (docs/memcg.md). Then its number is free.
    ///
    /// # Errors
    ///
    /// As Linux's `rmdir` of a cgroup.
    pub fn remove_memcg(&self, id: MemcgId) -> Result<(), MemcgError> {
        self.spaces.memcgs().lifecycle().remove(id)?;
        self.spaces.swap().reparenting().after_removal(id);
        Ok(())
    }

    /// The memcg at `path`, from the root of the tree.
    pub fn find_memcg(&self, path: &str) -> Option<MemcgId> {
        self.spaces.memcgs().tree().find(path)
    }

    /// Writes `text` to the file `name` of a memcg, as a user would: `memory.max`, `memory.high`,
    /// `memory.low`, `memory.min`, `memory.swap.high`, `memory.swap.max`, `memory.zswap.max`,
    /// `memory.zswap.writeback`, `memory.oom.group`, `memory.reclaim`, `memory.peak`, `memory.swap.peak`.
    /// Usage above a new limit is reclaimed as far as possible. [`memcg_file`](crate::proc::memcg_file) reads
    /// these and the other files. A write to a peak, of any text but none, returns what the same open file is
    /// read with then.
    ///
    /// # Errors
    ///
    /// As Linux's `write`; nothing was changed then, except after [`MemcgError::Again`].
    pub fn write_memcg_file(
        &self,
        id: MemcgId,
        name: &str,
        text: &str,
    ) -> Result<Option<MemcgPeak>, MemcgError> {
        match self.spaces.memcgs().files().write(id, name, text)? {
            WriteOutcome::Done => Ok(None),
            WriteOutcome::PeakReset(peak) => Ok(Some(peak)),
            WriteOutcome::AboveMax => {
                quire_reclaim::reclaim_to_limit(&self.spaces, id, Limit::Max);
                Ok(None)
            }
            WriteOutcome::AboveHigh => {
                quire_reclaim::reclaim_to_limit(&self.spaces, id, Limit::High);
                Ok(None)
            }
            WriteOutcome::Reclaim { pages } => {
                let mut missing = pages;
                while missing > 0 {
                    // In parts, as in Linux: what is freed beyond the wish stays little.
                    match self.reclaim(id, (missing / 4).max(RECLAIM_PART.min(missing))) {
                        0 => return Err(MemcgError::Again),
                        freed => missing = missing.saturating_sub(freed),
                    }
                }
                Ok(None)
            }
        }
    }

    /// The techniques that this memory was built with.
    #[doc(hidden)]
    pub fn techniques(&self) -> Techniques {
        self.techniques
    }

    /// Ticks after which an idle CPU holds nothing back, on a machine of up to 32 CPUs: on a larger one each
    /// tick looks at so many of them, in turn. Where CPUs hold more than a tick gives back,
    /// [`kswapd_step`](Self::kswapd_step) has to be called after each; else it takes more ticks.
    pub const TICKS_TO_EMPTY: u32 = FramePcp::<P>::TICKS_TO_EMPTY;

    /// To be called by a machine's timer about once a second, on any of its CPUs: drains unused frames from
    /// the per-CPU lists ([`FramePcp::age_lists`]), and frees what waited for readers. Without it idle CPUs
    /// keep their frames until an allocation would fail. What it does is bounded, whatever the machine's
    /// size: it may be called in an interrupt. Returns the number of frames drained.
    pub fn tick(&self, pin: &Pin<'_, P>) -> u64 {
        // All CPUs are looked at for a removed memcg. Those of a large machine are left to the background
        // threads, which are not pinned.
        if self.platform().cpu_count() <= FramePcp::<P>::CPUS_AT_A_TICK {
            self.spaces.memcgs().lifecycle().sweep_one();
        }
        self.spaces.with_own_pin(pin, |pin| {
            self.spaces.frames().limbo().reap_some(pin);
            self.spaces.frames().pcp().age_lists(pin)
        })
    }

    /// One step of khugepaged, between two sleeps; see [`quire_space::khugepaged_step`]. A machine's
    /// background thread calls it, and then sleeps as configured (`khugepaged/scan_sleep_millisecs`).
    pub fn khugepaged_step(&self) -> KhugepagedStep {
        self.spaces.memcgs().lifecycle().sweep();
        quire_space::khugepaged_step(&self.spaces)
    }

    /// Takes a swap device into use. This also raises the limit for one mapping: see
    /// [`MemoryConfig::overcommit`].
    ///
    /// # Errors
    ///
    /// [`SwapOnError`]; nothing has changed.
    pub fn swapon<D: SwapDevice<P>>(
        &self,
        device: D,
        options: SwapOnOptions,
    ) -> Result<DeviceId, SwapOnError> {
        quire_space::swapon(&self.spaces, device, options)
    }

    /// Removes a swap device: all its pages are swapped in. `goes_on` is called periodically; the call stops
    /// if it returns false.
    ///
    /// # Errors
    ///
    /// [`SwapOffError`]; the device is in use again.
    pub fn swapoff(&self, id: DeviceId, goes_on: impl FnMut() -> bool) -> Result<(), SwapOffError> {
        quire_space::swapoff(&self.spaces, id, goes_on)
    }

    /// One step of kswapd after a wake-up: see [`quire_reclaim::kswapd_step`]. A machine's background thread
    /// calls it about ten times a second, and again at once while frames are missing and some were freed.
    pub fn kswapd_step(&self) -> KswapdStep {
        self.spaces.memcgs().lifecycle().sweep();
        quire_reclaim::kswapd_step(&self.spaces)
    }

    /// Reclaims about `pages` below a memcg, as a write to its `memory.reclaim` does. Returns the pages
    /// freed.
    #[doc(hidden)]
    pub fn reclaim(&self, memcg: MemcgId, pages: u64) -> u64 {
        quire_reclaim::reclaim_memcg(&self.spaces, memcg, pages)
    }

    /// How often the lock of each zone was taken so far.
    #[doc(hidden)]
    pub fn zone_locks(&self) -> impl Iterator<Item = SpinStatistics> + '_ {
        self.spaces.frames().reports().zone_locks()
    }

    /// A new file of `size` bytes, open, whose bytes `backing` has. It is dropped with the last handle and
    /// mapping.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`] and [`PageError::NoMemory`]; the backing is dropped then.
    pub fn create_file<B: FileBacking<P>>(&self, backing: B, size: u64) -> Result<File<'_, P>, PageError> {
        File::create(&self.spaces, backing, size)
    }

    /// New shared memory of `size` bytes, all zeros: a file that has no backing (`memfd_create`, or a file in
    /// a tmpfs). `owner` is asked for each page that comes to exist; `()` has no limit. As in Linux the
    /// result does not count as open for writing where others open it for execution: a program runs from its
    /// memfd.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`] and [`PageError::NoMemory`].
    pub fn create_shmem<O: ShmemOwner>(&self, owner: O, size: u64) -> Result<File<'_, P>, PageError> {
        File::create_shmem(&self.spaces, owner, size)
    }

    /// A new name space of SysV shared memory, without segments.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`].
    pub fn create_shm(&self) -> Result<ShmNamespace<'_, P>, Error> {
        ShmNamespace::new(&self.spaces)
    }

    /// Pages of all files (`Cached`, `Dirty` and `Writeback` of `/proc/meminfo`).
    #[doc(hidden)]
    pub fn file_totals(&self) -> FileTotals {
        self.spaces.page_cache().files().totals()
    }

    /// A new, empty address space with the usual layout and limits. If memory is short some is reclaimed for
    /// it: the caller is not pinned and holds no lock.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`].
    pub fn create_space(&self) -> Result<Space<'_, P>, Error> {
        self.create_space_with(Layout::standard(P::Paging::USER_END), Limits::default())
    }

    /// A new, empty address space, as [`create_space`](Self::create_space).
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`].
    pub fn create_space_with(&self, layout: Layout, limits: Limits) -> Result<Space<'_, P>, Error> {
        Space::create(&self.spaces, layout, limits)
    }
}

impl<P: Platform> fmt::Debug for Memory<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("spaces", &self.spaces).finish_non_exhaustive()
    }
}
