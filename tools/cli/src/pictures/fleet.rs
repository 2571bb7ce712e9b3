//! What `quire advise --from --report` draws for all programs together.

use super::{columns, row};
use crate::output::fleet as words;
use quire_advise::Fleet;
use quire_report::{Drawing, Picture, Section, Unit};

/// The section of all programs.
pub(crate) fn fleet(fleet: &Fleet) -> Section {
    let suits = Picture {
        name: "fleet-programs".to_owned(),
        title: "How many programs each setting suits".to_owned(),
        explanation:
            "For each setting of large pages, how many programs have a result of it, how many of these lose \
                      nothing notable by it, and for how many it is worth trying."
                .to_owned(),
        columns: columns("setting", &["programs", "it suits", "worth trying"], &Unit::Count),
        rows: fleet
            .settings
            .iter()
            .map(|setting| {
                let counts = [setting.programs, setting.suits, setting.named];
                row(&setting.name, counts.map(|count| Some(count as f64)))
            })
            .collect(),
        drawing: Drawing::Bars { bars: 3, each_its_own: false, unit_column: None },
    };
    let memory = Picture {
        name: "fleet-memory".to_owned(),
        title: "Memory of all programs".to_owned(),
        explanation:
            "The highest private memory of each program (peak anonymous memory), all of them added up: under \
                      the settings that they have now, and under this one."
                .to_owned(),
        columns: columns("setting", &["now", "under it"], &Unit::Bytes),
        rows: fleet
            .settings
            .iter()
            .map(|setting| row(&setting.name, [Some(setting.memory_now), Some(setting.memory)]))
            .collect(),
        drawing: Drawing::Bars { bars: 2, each_its_own: false, unit_column: None },
    };
    Section {
        title: "All programs".to_owned(),
        verdict: words::verdict(fleet),
        pictures: vec![suits, memory],
        provenance: vec![
            ("Programs".to_owned(), fleet.programs.to_string()),
            ("Page made by".to_owned(), concat!("quire ", env!("CARGO_PKG_VERSION")).to_owned()),
        ],
        objects: words::objects(fleet),
    }
}
