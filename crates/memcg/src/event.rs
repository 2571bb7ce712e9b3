//! Events of memcgs, as in `memory.events` and `memory.swap.events`.

/// Something rare that happened to a memcg.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum MemcgEvent {
    /// It was reclaimed from while below `memory.low`.
    Low,
    /// It was above `memory.high`, and was reclaimed from.
    High,
    /// A charge would have exceeded `memory.max`.
    Max,
    /// It was at `memory.max`, and reclaim freed nothing.
    Oom,
    /// A process was OOM-killed.
    OomKill,
    /// All its processes were OOM-killed together.
    OomGroupKill,
    /// A charge was held up since it had more than `memory.swap.high`.
    SwapHigh,
    /// A swap charge would have exceeded `memory.swap.max`.
    SwapMax,
    /// A swap allocation failed, at that limit or because no device has free slots.
    SwapFail,
}

impl MemcgEvent {
    /// How many there are.
    pub const COUNT: usize = Self::SwapFail as usize + 1;
}
