//! The interface for background reclaim (kswapd).

use super::Frames;
use quire_arch::Platform;

impl<P: Platform> Frames<P> {
    /// Frames that background reclaim should still free in the zones of the machine: none while every zone is
    /// above its `low` watermark, boost included; once one falls below, what it lacks to reach `high`. What
    /// is free in the high-order atomic reserve does not count: ordinary requests do not get it.
    pub fn background_target(&self) -> u64 {
        let lacking = self.zones.populated().map(|zone| {
            zone.levels.get().lacking(zone.available() + super::report::listed_pages(self.platform(), zone))
        });
        lacking.sum()
    }

    /// Whether a zone has more free than its `high` watermark, boost included, and than it reserves for
    /// requests that can only use such zones, or that cannot wait: then a request for one frame succeeds.
    pub fn is_above_high(&self) -> bool {
        self.zones.populated().any(|zone| {
            let marks = zone.levels.get();
            zone.available()
                > marks.high.saturating_add(marks.boost).saturating_add(zone.levels.lowmem_reserve())
        })
    }

    /// Background reclaim has finished its round: watermark boosts end.
    pub fn end_boost(&self) {
        for zone in self.zones.populated() {
            let _pin = self.platform.pin();
            zone.lock(&self.platform).clear_boost();
        }
    }
}
