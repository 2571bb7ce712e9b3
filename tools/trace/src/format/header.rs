//! The header: where, when and how a trace was recorded.

use super::varint::{Cursor, Malformed};
use super::wire::{Wire, wire};
use super::{FORMAT_VERSION, HostSettings, Version};
use crate::mix::mix;

/// Where, when and how a trace was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceHeader {
    /// The version of the recorder.
    pub recorder: String,
    /// The kernel that it ran on (`uname -r`).
    pub kernel: String,
    /// The machine (`uname -m`).
    pub machine: String,
    /// Bytes of a page.
    pub page_size: u32,
    /// CPUs that were online.
    pub cpus: u32,
    /// Bytes of RAM.
    pub ram: u64,
    /// Bytes of swap space.
    pub swap: u64,
    /// Where the page faults come from.
    pub faults: FaultSource,
    /// How the calls were caught.
    pub calls: CallSource,
    /// The source of reuses of pages.
    pub uses: UseSource,
    /// The settings of the host. `None`: versions 1 to 3 of the format do not have them, nor does a trace
    /// that was imported.
    pub settings: Option<HostSettings>,
    /// How pages were paged out so that later uses of them are page faults. `None`: they were not, as in
    /// versions 1 to 4 of the format.
    pub pressure: Option<Pressure>,
    /// The memory limit that the program was shown instead of its own, in bytes, so that it sized itself by
    /// that. `None`: none, as in versions 1 to 8 of the format.
    pub shown_limit: Option<u64>,
    /// Bytes that Linux maps around a page of a file that is touched, as far as they are cached
    /// (`fault_around_bytes` of debugfs). Linux's default where the recorder could not read it, and in
    /// versions 1 to 11 of the format.
    pub fault_around: u64,
    /// Bytes that Linux reads ahead of a file (`read_ahead_kb` of the file system of the program). `None`:
    /// not known, as in versions 1 to 11 of the format.
    pub read_ahead: Option<u64>,
    /// When the recording began, in seconds since 1970 (UTC).
    pub started: u64,
    /// The command that was recorded: the program and its arguments.
    pub command: Vec<Box<[u8]>>,
}

/// `fault_around_bytes` of a Linux that was not told another one.
const DEFAULT_FAULT_AROUND: u64 = 64 << 10;

/// Of a recording that was imported or made up: pages of 4 KiB, one CPU, and nothing known of a host.
impl Default for TraceHeader {
    fn default() -> Self {
        Self {
            recorder: String::new(),
            kernel: String::new(),
            machine: String::new(),
            page_size: 4096,
            cpus: 1,
            ram: 0,
            swap: 0,
            faults: FaultSource::default(),
            calls: CallSource::default(),
            uses: UseSource::None,
            settings: None,
            pressure: None,
            shown_limit: None,
            fault_around: DEFAULT_FAULT_AROUND,
            read_ahead: None,
            started: 0,
            command: Vec::new(),
        }
    }
}

/// How the recorder paged the program's anonymous memory out, the oldest pages first. A page's next use is
/// then a page fault, so every page in use is seen repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// About so many bytes of it stayed resident; for a sample, scaled to all of the memory.
    pub bytes: u64,
    /// One block in so many was paged out, chosen by a hash of its address; at least 1. The others stayed
    /// resident, and show the first use of each page only.
    pub one_in: u32,
    /// The seed of the hash that chooses the blocks.
    pub seed: u64,
    /// Bytes of a block, as the exponent of a power of two. 2 MiB in version 5 of the format.
    pub block_shift: u32,
}

/// What one page table maps, which is the largest block of a sample.
const REGION_SHIFT: u32 = 21;
/// The smallest: 64 KiB, so that neighbours that are used together mostly stay together.
const LEAST_BLOCK_SHIFT: u32 = 16;

impl Pressure {
    /// On all of the memory.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self { bytes, one_in: 1, seed: 0, block_shift: REGION_SHIFT }
    }

    /// On one block of 2 MiB in `one_in`, another choice for each `seed`.
    #[must_use]
    pub fn of_sample(bytes: u64, one_in: u32, seed: u64) -> Self {
        Self { one_in: one_in.max(1), seed, ..Self::of(bytes) }
    }

    /// This pressure in blocks of 64 KiB to 2 MiB, small enough that some 32 of them may stay resident. A
    /// large folio can be larger than such a block.
    #[must_use]
    pub fn in_small_blocks(self) -> Self {
        let wanted = self.bytes / u64::from(self.one_in.max(1)) / 32;
        Self { block_shift: wanted.max(1).ilog2().clamp(LEAST_BLOCK_SHIFT, REGION_SHIFT), ..self }
    }

    /// Whether the block of `addr` was paged out.
    #[must_use]
    pub fn covers(&self, addr: u64) -> bool {
        let block = addr.checked_shr(self.block_shift).unwrap_or(0);
        self.one_in <= 1 || mix(block ^ self.seed).is_multiple_of(self.one_in.into())
    }

    /// Whether only a part of the memory was paged out.
    #[must_use]
    pub fn is_sample(&self) -> bool {
        self.one_in > 1
    }
}

/// Where the page faults of a trace come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultSource {
    /// The kernel's `exceptions:page_fault_*` tracepoints: every fault, with its access as the processor gave
    /// it.
    Tracepoint,
    /// The software page-fault event: every fault; the access was found by decoding the instruction.
    Software,
    /// `/proc/PID/pagemap`, read at calls: which pages were touched, not when, how often or by which thread.
    Pagemap,
    /// There are none: the trace was not recorded but imported, and has uses of pages instead.
    #[default]
    None,
}

/// How a trace knows reuses of pages. First touches alone do not say which memory a program continues to use,
/// and so not how it would run with less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseSource {
    /// The header does not say (versions 1 and 2 of the format): the events do.
    Unknown,
    /// Nothing.
    None,
    /// Samples at this interval. It is longer where a sample takes long.
    Sampled {
        /// The shortest time between two samples, in milliseconds; 0 where it is not known (version 2).
        interval_ms: u32,
    },
    /// Every use, in its order.
    Exact,
    /// Page faults: pages were paged out so that their next use is one ([`TraceHeader::pressure`]).
    Pressure,
}

/// How the calls of a trace were caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallSource {
    /// A seccomp filter stopped the program at memory calls only; those of which only registers are recorded
    /// may come from tracepoints.
    #[default]
    Seccomp,
    /// The program was stopped at every call.
    EveryCall,
}

impl FaultSource {
    /// How exact the page faults of such a trace are, in one sentence without an end.
    #[must_use]
    pub fn exactness(self) -> &'static str {
        match self {
            Self::Tracepoint => {
                "page faults are exact: each of them, with its access as the processor reported it"
            }
            Self::Software => {
                "page faults are complete; the program's accesses were decoded from its instructions, the kernel's \
                 are not known"
            }
            Self::Pagemap => {
                "page faults are not exact: only pages that were there when they were looked for, without order; \
                 peaks are lower bounds"
            }
            Self::None => "there are no page faults: the trace was imported and has uses of pages instead",
        }
    }

    /// The name that `--faults` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracepoint => "tracepoint",
            Self::Software => "software",
            Self::Pagemap => "pagemap",
            Self::None => "none",
        }
    }
}

wire!(TraceHeader {
    recorder,
    kernel,
    machine,
    page_size,
    cpus,
    ram,
    swap,
    faults,
    calls,
    uses(since THREE, before UseSource::Unknown),
    settings(since FOUR, before None),
    pressure(since FIVE, before None),
    shown_limit(since NINE, before None),
    fault_around(since TWELVE, before DEFAULT_FAULT_AROUND),
    read_ahead(since TWELVE, before None),
    started,
    command,
});

wire!(Pressure { bytes, one_in, seed, block_shift (since SIX, before REGION_SHIFT) });

impl Wire for UseSource {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.push(0),
            Self::Sampled { interval_ms } => {
                out.push(1);
                interval_ms.put(out);
            }
            Self::Exact => out.push(2),
            Self::Unknown => out.push(3),
            Self::Pressure => out.push(4),
        }
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        match cursor.u8()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Sampled { interval_ms: cursor.u32()? }),
            2 => Ok(Self::Exact),
            3 => Ok(Self::Unknown),
            4 => Ok(Self::Pressure),
            _ => Err(Malformed("unknown source of uses")),
        }
    }
}

impl TraceHeader {
    /// The header as a file holds it, in the newest version of the format. [`Self::from_bytes`] reads it
    /// again.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode()
    }

    /// Reads what [`Self::to_bytes`] wrote, also for an earlier [`FORMAT_VERSION`].
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn from_bytes(bytes: &[u8], version: u16) -> Result<Self, String> {
        let version = Version::new(version).ok_or_else(|| {
            format!("format {version} of recordings is not known, up to {FORMAT_VERSION} is")
        })?;
        Self::decode(bytes, version).map_err(|Malformed(reason)| reason.to_owned())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        // Under the checksum, as the preamble is not: a file of one version is not read as one of another.
        u32::from(FORMAT_VERSION).put(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8], version: Version) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes, 0, version);
        let header = Self::get(&mut cursor)?;
        if version >= Version::SEVEN && cursor.u32()? != version.number() {
            return Err(Malformed("it is of another version than the preamble says"));
        }
        if !cursor.is_at_end() {
            return Err(Malformed("it is longer than it should be"));
        }
        Ok(header)
    }

    /// Whether a replay can predict the program's memory under other settings of transparent huge pages. It
    /// needs to know which 4 KiB pages were touched.
    ///
    /// # Errors
    ///
    /// Why it cannot, and what to do.
    pub fn supports_thp_predictions(&self) -> Result<(), String> {
        const AGAIN: &str = "record it again with `quire record`";
        let Some(settings) = &self.settings else {
            return Err(match self.faults {
                FaultSource::None => {
                    "imported: its mappings are not the program's; record the program with `quire record`"
                        .to_owned()
                }
                _ => format!(
                    "recorded by an earlier version, which does not say whether huge pages hid which pages were touched; \
                     {AGAIN}"
                ),
            });
        };
        if self.knows_touched_pages() {
            return Ok(());
        }
        let enabled = settings.thp_file("enabled").unwrap_or("unknown");
        Err(format!(
            "recorded with transparent huge pages on ({enabled}): a fault that maps one hides which of its pages were \
             touched; {AGAIN}"
        ))
    }

    /// Whether each 4 KiB page that was touched has an event of its own.
    #[must_use]
    pub fn knows_touched_pages(&self) -> bool {
        match &self.settings {
            Some(settings) => settings.thp_turned_off || settings.thp_is_never(),
            None => self.faults == FaultSource::None,
        }
    }

    /// Shortens the command so that the header keeps well inside the limit of its frame.
    pub(crate) fn limit_command(&mut self) {
        const ROOM: usize = 64 << 10;
        let mut used = 0;
        let fits = self.command.iter().take_while(|word| {
            used += word.len() + 4;
            used <= ROOM
        });
        let fits = fits.count();
        if fits < self.command.len() {
            self.command.truncate(fits);
            self.command.push((*b"...").into());
        }
    }
}
