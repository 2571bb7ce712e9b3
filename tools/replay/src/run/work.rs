//! What a replay looks at beside what its events name, counted for tests: what takes time without bound can
//! be seen without a clock.

#[cfg(test)]
thread_local! {
    static LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// So many mappings, spaces or blocks were looked at.
#[inline]
pub(super) fn looks_at(things: u64) {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + things);
    #[cfg(not(test))]
    let _ = things;
}

/// How many this thread looked at in `of`.
#[cfg(test)]
pub(super) fn looked_at(of: impl FnOnce()) -> u64 {
    let before = LOOKED_AT.get();
    of();
    LOOKED_AT.get() - before
}
