//! What the advice for all programs says together.

use super::merge::MergedProgram;
use crate::change::Measure;
use crate::predict::{Prediction, command};
use crate::setting::grid;
use crate::verdict::Gain;
use quire_trace::format::TraceHeader;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A program is a loser by time from this share of its processor time on.
const SLOWER: f64 = 0.02;

/// One setting, for all programs that have a row of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FleetSetting {
    /// Its name.
    pub name: String,
    /// Programs that have a row of it.
    pub programs: usize,
    /// Of these, those that it is present for.
    pub present: usize,
    /// Those whose verdict names it as worth trying.
    pub named: usize,
    /// Those that it suits: the verdict names it, or they lose nothing notable by it.
    pub suits: usize,
    /// The peaks of anonymous memory of all these programs under their present settings, in bytes.
    pub memory_now: f64,
    /// The same under this one.
    pub memory: f64,
    /// The processor times of all these programs, in seconds.
    pub seconds: f64,
    /// What other page faults save of it: an estimate. Less than 0: what they cost.
    pub seconds_saved: f64,
    /// The program that loses most by it, if one loses.
    pub worst: Option<Loser>,
}

/// A program that loses by a setting.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Loser {
    /// Its command.
    pub command: String,
    /// The first of its recordings: what tells it from other programs of this command.
    pub recording: PathBuf,
    /// There are such, made under other settings.
    pub is_one_of_several: bool,
    /// How much more memory it takes, as a share, by the measure that rises most; 0 if none rises notably.
    pub memory: f64,
    /// How much more of its processor time page faults take, as a share; 0 if that is not notable.
    pub time: f64,
}

/// All programs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fleet {
    /// How many there are.
    pub programs: usize,
    /// Of these, those for which nothing changes.
    pub unchanged: usize,
    /// Those of which too much is not known.
    pub unreliable: usize,
    /// Settings that some program has a row of, in the order of the grid.
    pub settings: Vec<FleetSetting>,
    /// Programs of which it is known how much memory is enough.
    pub enough_known: usize,
    /// What that saves of RAM, of all of them, in bytes.
    pub enough_saved: u64,
}

impl Fleet {
    /// Of these programs. What is not reliable is counted, and nothing else of it.
    #[must_use]
    pub fn of(programs: &[MergedProgram]) -> Self {
        let mut fleet = Self { programs: programs.len(), ..Self::default() };
        let mut commands: BTreeMap<&[Box<[u8]>], usize> = BTreeMap::new();
        for MergedProgram { prediction, .. } in programs {
            *commands.entry(&prediction.header.command).or_default() += 1;
        }
        for MergedProgram { prediction, first, .. } in programs {
            let loser = Loser {
                command: command(&prediction.header),
                recording: first.clone(),
                is_one_of_several: commands.get(&*prediction.header.command).is_some_and(|count| *count > 1),
                ..Loser::default()
            };
            if prediction.unreliable.is_some() {
                fleet.unreliable += 1;
                continue;
            }
            fleet.unchanged += usize::from(prediction.verdict.nothing_changes());
            if let Some(enough) = &prediction.limits.enough {
                fleet.enough_known += 1;
                fleet.enough_saved = fleet.enough_saved.saturating_add(enough.saved);
            }
            for place in 0..prediction.rows.len() {
                fleet.add(prediction, place, &loser);
            }
        }
        // As the rows of one program are; what only some hosts have comes last.
        let order: Vec<String> =
            grid(&TraceHeader::default()).into_iter().map(|setting| setting.name).collect();
        let place = |name: &str| order.iter().position(|known| known == name).unwrap_or(order.len());
        fleet.settings.sort_by_key(|setting| place(&setting.name));
        fleet
    }

    /// Adds a row of a program, which is this one if it loses.
    fn add(&mut self, prediction: &Prediction, place: usize, loser: &Loser) {
        let (Some((setting, row)), Some((_, now))) = (prediction.rows.get(place), prediction.rows.first())
        else {
            return;
        };
        let Some(change) = prediction.changes.get(place) else { return };
        let found = self.settings.iter().position(|known| known.name == setting.name);
        let mine = found.unwrap_or_else(|| {
            self.settings.push(FleetSetting { name: setting.name.clone(), ..FleetSetting::default() });
            self.settings.len() - 1
        });
        let mine = &mut self.settings[mine];
        let verdict = &prediction.verdict;
        let named = [&verdict.least_memory, &verdict.fewest_faults];
        let is_named = named.into_iter().flatten().any(|gain| gain.place == place);
        let rise = Gain { place, change: *change }.rise().map_or(0.0, |(_, rise)| rise.share.median);
        let slower = -change.time.median;
        let slower = if slower >= SLOWER && change.time.max < 0.0 { slower } else { 0.0 };
        let loses = rise > 0.0 || slower > 0.0;
        mine.programs += 1;
        mine.present += usize::from(setting.is_present);
        mine.named += usize::from(is_named);
        mine.suits += usize::from(is_named || !loses);
        mine.memory_now += now.memory(Measure::Charged).median;
        mine.memory += row.memory(Measure::Charged).median;
        let seconds = prediction.processor_seconds.unwrap_or(prediction.seconds);
        mine.seconds += seconds;
        mine.seconds_saved += change.time.median * seconds;
        let worst = mine.worst.as_ref().map_or(0.0, |worst| worst.memory.max(worst.time));
        if loses && rise.max(slower) > worst {
            mine.worst = Some(Loser { memory: rise, time: slower, ..loser.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_programs_are_no_fleet() {
        assert_eq!(Fleet::of(&[]), Fleet::default());
    }
}
