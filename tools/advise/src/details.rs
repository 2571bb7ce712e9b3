//! What is told beside the rows: in which mappings memory is wasted, and what there is at the peak. Each
//! takes replays of its own, which are chosen by what others found.

use crate::error::AdviseError;
use crate::outcome::Outcome;
use crate::point::{Asked, Point};
use crate::setting::Setting;
use crate::source::{Source, if_stored};
use std::collections::HashMap;

/// What the programs hold at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtPeak {
    /// Anonymous memory, each page counted once.
    pub anonymous: u64,
    /// Of it, what may be freed at once where memory is short (`MADV_FREE`).
    pub lazily_free: u64,
    /// Shared memory, each page counted once.
    pub shared: u64,
    /// Of it, what no process maps any more: files in memory that may be gone.
    pub unmapped: u64,
    /// Page tables.
    pub page_tables: u64,
    /// What else the kernel keeps for threads, processes and mappings.
    pub kernel: u64,
    /// Pages of files that are locked.
    pub locked_files: u64,
    /// Of the anonymous memory, what is not used again, at least and at most, if recordings tell.
    pub unused: Option<[u64; 2]>,
}

/// Memory in a mapping that is never touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waste {
    /// The mapping's name; if it has none, where it was mapped, or its size and address.
    pub mapping: String,
    /// Bytes.
    pub bytes: u64,
}

/// The most mappings that are reported.
const MOST_WASTES: usize = 8;

/// Where the memory lies that `outcome` of `point` had at its peak, and that is not resident at that event
/// without huge pages, under `never`. None if the results of replays are stored, and have none of this.
pub(crate) fn waste_by_mapping(
    source: &Source,
    point: &Point,
    never: &Setting,
    outcome: &Outcome,
) -> Result<Option<Vec<Waste>>, AdviseError> {
    let asked = Asked::Mappings(outcome.life.at_peak.event);
    let with = Point { asked: asked.clone(), ..point.clone() };
    let without =
        Point { setting: never.with_techniques_of(&point.setting), phase: None, asked, kernel: point.kernel };
    // Both are asked for, so that both are known to be missing.
    let (without, with) = (if_stored(source.mappings(&without))?, if_stored(source.mappings(&with))?);
    let Some((without, with)) = without.zip(with) else { return Ok(None) };
    let touched: HashMap<(usize, u64), u64> =
        without.into_iter().map(|mapping| ((mapping.process, mapping.start), mapping.anonymous)).collect();
    let mut wastes: HashMap<String, u64> = HashMap::new();
    for mapping in with {
        let touched = touched.get(&(mapping.process, mapping.start)).copied().unwrap_or(0);
        let name = match (mapping.name, mapping.site) {
            (name, site) if name.is_empty() && site.is_empty() => format!(
                "anonymous mapping of {} KiB at {:#x}",
                (mapping.end - mapping.start) >> 10,
                mapping.start
            ),
            (name, site) if name.is_empty() => format!("anonymous memory mapped at {site}"),
            (name, _) => name,
        };
        *wastes.entry(name).or_default() += mapping.anonymous.saturating_sub(touched);
    }
    let mut wastes: Vec<Waste> = wastes
        .into_iter()
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(mapping, bytes)| Waste { mapping, bytes })
        .collect();
    wastes.sort_by(|one, other| (other.bytes, &one.mapping).cmp(&(one.bytes, &other.mapping)));
    wastes.truncate(MOST_WASTES);
    Ok(Some(wastes))
}

/// What the programs of a replay hold when most is charged. Where the results of replays are stored, and have
/// none of this, what may be freed at once is not among it.
pub(crate) fn at_peak(source: &Source, point: &Point, outcome: &Outcome) -> Result<AtPeak, AdviseError> {
    let sample = outcome.life.at_charge_peak;
    let point = Point { asked: Asked::Mappings(sample.event), ..point.clone() };
    let mappings = if_stored(source.mappings(&point))?.unwrap_or_default();
    Ok(AtPeak {
        anonymous: sample.anonymous,
        lazily_free: mappings.iter().map(|mapping| mapping.lazily_free).sum::<u64>().min(sample.anonymous),
        shared: sample.shared,
        unmapped: sample.unmapped,
        page_tables: sample.page_tables,
        kernel: sample.kernel,
        locked_files: sample.locked_files,
        unused: None,
    })
}
