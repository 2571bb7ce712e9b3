//! What the recorder lost, in words.

/// What the recorder lost, each with its name: page faults and calls, of them those whose events Linux
/// removed.
pub(super) fn losses(lost: u64, unheard: u64) -> Vec<(&'static str, String)> {
    let lost = lost.saturating_sub(unheard);
    let of_ring = format!("{lost} page faults and calls were not recorded (the kernel's ring was full)");
    let of_others = format!(
        "{unheard} page faults of programs with other privileges were not recorded, nor were their calls without a \
         stop (Linux removed the perf events)"
    );
    let all = [("lost", lost, of_ring), ("unheard", unheard, of_others)];
    all.into_iter().filter(|(_, count, _)| *count > 0).map(|(name, _, what)| (name, what)).collect()
}
