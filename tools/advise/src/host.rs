//! What is known of the host that the advice is for.

use crate::swap::LimitSwap;
use quire_measure::{Costs, SwapSupport};
use quire_trace::format::TraceHeader;

/// A host. By default nothing is known of it.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// What page faults and the kernel's memory cost there, if it was calibrated.
    pub costs: Option<Costs>,
    /// Which swap it can set up.
    pub swaps: Option<SwapSupport>,
}

impl Host {
    /// The swap that the host cannot set up, each with the reason. A recording of another kernel is of
    /// another host, of which that is not known.
    pub(crate) fn lacking(&self, header: &TraceHeader) -> Vec<(LimitSwap, String)> {
        let Some(swaps) = self.swaps.as_ref().filter(|swaps| swaps.kernel() == header.kernel) else {
            return Vec::new();
        };
        let why = |swap: LimitSwap| swaps.lacks(swap.measured(), swap.compressor()?);
        LimitSwap::ALL.into_iter().filter_map(|swap| Some((swap, why(swap)?))).collect()
    }
}
