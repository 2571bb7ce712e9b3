//! The interface for background reclaim (kswapd).

use super::Frames;
use quire_arch::Platform;

impl<P: Platform> Frames<P> {
    /// Frames that background reclaim should still free in the zones of the machine: none while every zone is
    /// above its `low` watermark, boost included; once one falls below, what it lacks to reach `high`.
    pub fn background_target(&self) -> u64 {
        let lacking = self
            .zones
            .populated()
            .map(|zone| zone.levels.get().lacking(zone.free() + super::report::listed_pages(zone)));
        lacking.sum()
    }

    /// Background reclaim has finished its round: watermark boosts end.
    pub fn end_boost(&self) {
        for zone in self.zones.populated() {
            zone.lock(&self.platform).clear_boost();
        }
    }
}
