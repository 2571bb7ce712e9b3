//! Running a recorded memory life again, on Quire.
//!
//! One address space for each recorded one, one vCPU for each recorded CPU, and every thread on the vCPU that
//! its event names. A CPU runs the thread that an event last named there, until that thread is seen elsewhere
//! or ends: then it has no space, and no shootdown reaches it. Events run in the order of the trace, which is
//! a valid serialisation of the run. Calls get their recorded arguments; where Linux chose an address, Quire
//! chooses too, starting from the recorded layout; every result is held against the recorded one. Touches go
//! through the software MMU.
//!
//! A difference is counted, and then the space is brought to where Linux was, so that one difference does not
//! make a thousand.
//!
//! # Modules, lowest first
//!
//! - `ram`, `cpus`: the RAM and the vCPUs of a machine.
//! - `space`: the address spaces of a replay.
//! - `stored`: how figures of a replay are stored.
//! - `args`: what the arguments of memory calls say.
//! - `mismatch`: a difference between a replay and its recording.
//! - `names`: names of calls and of their arguments, for gaps.
//! - `page_set`: a set of pages.
//! - `around`: what Linux maps around a page of a file.
//! - `overlap`: calls whose order is not known.
//! - `known_file`: a file whose size is recorded.
//! - `shared_file`: shared memory with a name.
//! - `files`, `own_files`: the files of a replay, and those of the images of programs.
//! - `schedule`: which thread each CPU runs.
//! - `task`: threads, and their privileges.
//! - `charge`: what is charged to the memory cgroup of programs.
//! - `contents`: contents for pages, as compressible as those of the recorded program.
//! - `swap`: the swap devices.
//! - `error`: why a trace could not be replayed.
//! - `touch`: replaying accesses.
//! - `forks`: what forks cost.
//! - `joint`: how much anonymous memory several processes have mapped since a fork.
//! - `again`: what of the most anonymous memory is used again.
//! - `ends`: what Linux and a replay had of each address space when it ended.
//! - `digest`: a digest of the contents of an address space.
//! - `asked`: what a program asked and what it got.
//! - `far`: changes of mappings that end long after they began.
//! - `failed`: calls that bring memory in, and that failed in the recording.
//! - `image`: building the address space that a program begins with.
//! - `sampled`: the contents of a recording's pages, as far as sampled.
//! - `sites`: where programs mapped anonymous memory.
//! - `unbuilt`: calls that are not built.
//! - `figures`: figures of one process, Quire's beside Linux's.
//! - `life`: memory over the recorded time.
//! - `ahead`: a look ahead at the events.
//! - `segments`: System V segments.
//! - `call`: making recorded calls again.
//! - `mappings`: the anonymous memory of mappings at one moment.
//! - `pressure`: the cost of memory pressure.
//! - `settings`: the settings of huge pages during a recording.
//! - `trial`: trying what a call would return in another order.
//! - `heat`: anonymous memory by address and recorded time.
//! - `moment`: what a caller can inspect after each event.
//! - `plan`: what a trace needs.
//! - `options`: how a trace is replayed.
//! - `limit`: a limit on the memory of the programs.
//! - `report`: what a replay found.
//! - `run`: the state of a replay, and one step of it.
//! - `replay`: a trace that is replayed, on machines of its own.

mod again;
mod ahead;
mod args;
mod around;
mod asked;
mod call;
mod charge;
pub(crate) mod contents;
mod cpus;
mod digest;
mod ends;
mod error;
mod failed;
mod far;
mod figures;
mod files;
mod forks;
mod heat;
mod image;
mod joint;
mod known_file;
mod life;
mod limit;
mod mappings;
mod mismatch;
mod moment;
mod names;
mod options;
mod overlap;
mod own_files;
mod page_set;
mod plan;
mod pressure;
mod ram;
mod replay;
mod report;
mod run;
mod sampled;
mod schedule;
mod segments;
mod settings;
mod shared_file;
mod sites;
mod space;
mod stored;
mod swap;
mod task;
mod touch;
mod trial;
mod unbuilt;

pub use again::PeakUse;
pub use charge::KernelCosts;
pub use ends::{SpaceEnd, SpaceEnds};
pub use error::ReplayError;
pub use figures::{AllocatorFigures, AlreadyPresent, ProcessReport, Residency, TableFigures};
pub use forks::ForkFigures;
pub use heat::{HeatCell, HeatMap, HeatPlace};
pub use life::{FolioFigures, LifeFigures, LifeSample, MOST_SAMPLES, ProcessLife};
pub use mappings::MappingLife;
pub use mismatch::{Gap, Mismatch};
pub use moment::{Counters, Moment, Watcher};
pub use options::{Audits, ReplayOptions};
pub use plan::{Claims, Needs};
pub use pressure::{PressureFigures, SwapFigures};
pub use ram::MACHINE_RAM;
pub use replay::{LoadedReplay, Progress, Replay};
pub use report::{DoesNotFit, HeldMemory, ReplayReport};
pub use settings::{recorded_huge_config, recorded_shmem_huge};
pub use swap::{SwapError, SwapKind, SwapSpec};
