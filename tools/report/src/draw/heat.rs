//! Address by time, as a picture of pixels.

use super::{Axis, LETTER, Size, axis_below, entry, titled};
use crate::picture::{HeatCell, HeatDrawing};
use crate::svg::Svg;
use crate::unit::Unit;
use base64::Engine;

const HEIGHT: f64 = 420.0;
/// Between two runs.
const GAP: f64 = 5.0;
/// A run is named beside it if it is so high.
const NAMED: f64 = 14.0;

/// What a pixel is made of: of the colours of a palette that colour-blind people tell apart (Okabe and
/// Ito's), on both a light and a dark ground.
const TOUCHED_NOW: [f32; 3] = [0.0, 90.0, 181.0];
const TOUCHED_BEFORE: [f32; 3] = [108.0, 180.0, 226.0];
const NEVER_TOUCHED: [f32; 3] = [230.0, 140.0, 0.0];
const PAGED_OUT: [f32; 3] = [204.0, 121.0, 167.0];
/// Shares are drawn in so many steps: a picture of few colours is small.
const STEPS: f32 = 12.0;
/// How opaque the smallest share is, so that it is seen.
const FAINTEST: f32 = 0.3;

pub(super) fn legend() -> Vec<String> {
    let entries = [
        ("h0", "in memory, touched at that time"),
        ("h1", "in memory, touched before"),
        ("h2", "in memory, never touched"),
        ("h3", "touched before, paged out"),
    ];
    let sample = |class| format!("<rect class=\"{class}\" x=\"1\" y=\"1\" width=\"26\" height=\"10\"/>");
    entries.map(|(class, text)| entry(&sample(class), text)).into()
}

/// The colour of a cell, transparent where it holds nothing.
fn pixel(cell: &HeatCell) -> [u8; 4] {
    let parts = [
        (cell.touched_now, TOUCHED_NOW),
        (cell.touched_before, TOUCHED_BEFORE),
        (cell.never_touched, NEVER_TOUCHED),
        (cell.paged_out, PAGED_OUT),
    ]
    .map(|(share, colour)| ((share.clamp(0.0, 1.0) * STEPS).ceil() / STEPS, colour));
    let all: f32 = parts.iter().map(|(share, _)| share).sum();
    if all <= 0.0 {
        return [0; 4];
    }
    let mut mixed = [0.0f32; 3];
    for (share, colour) in parts {
        mixed.iter_mut().zip(colour).for_each(|(mixed, part)| *mixed += part * share / all);
    }
    let opaque = FAINTEST + (1.0 - FAINTEST) * all.min(1.0);
    let [red, green, blue] = mixed.map(|part| part.round() as u8);
    [red, green, blue, (opaque * 255.0) as u8]
}

/// The pixels of runs, highest address first, as a PNG. Between two runs there are `gap` rows of nothing.
fn png(map: &HeatDrawing, gap: usize) -> Option<Vec<u8>> {
    let height = rows(map, gap);
    let mut pixels = Vec::with_capacity(height * map.columns * 4);
    for (place, run) in map.runs.iter().rev().enumerate() {
        if place > 0 {
            pixels.resize(pixels.len() + gap * map.columns * 4, 0);
        }
        for row in run.rows.iter().rev() {
            pixels.extend(row.iter().take(map.columns).flat_map(pixel));
        }
    }
    let mut file = Vec::new();
    let mut encoder =
        png::Encoder::new(&mut file, u32::try_from(map.columns).ok()?, u32::try_from(height).ok()?);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&pixels).ok()?;
    writer.finish().ok()?;
    Some(file)
}

/// Rows of pixels.
fn rows(map: &HeatDrawing, gap: usize) -> usize {
    let rows: usize = map.runs.iter().map(|run| run.rows.len()).sum();
    rows + map.runs.len().saturating_sub(1) * gap
}

pub(super) fn draw(map: &HeatDrawing, size: Size) -> Svg {
    let width = size.width();
    let names = if size.is_narrow() { 74.0 } else { 150.0 };
    let (left, right, top) = (names, width - 14.0, 22.0);
    let own: usize = map.runs.iter().map(|run| run.rows.len()).sum();
    let gap = (own as f64 * GAP / HEIGHT).ceil() as usize;
    let all = rows(map, gap).max(1);
    let row = HEIGHT / all as f64;
    let bottom = top + HEIGHT;
    let mut svg = Svg::new(width, bottom + 40.0);
    svg.text("label", "start", (2.0, 12.0), "address, highest at the top");
    svg.rect("ground", (left, top), (right - left, HEIGHT), "");
    if let Some(png) = png(map, gap) {
        let uri = format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(png));
        svg.image(&uri, (left, top), (right - left, HEIGHT));
    }
    let mut y = top;
    for (place, run) in map.runs.iter().rev().enumerate() {
        if place > 0 {
            let middle = y + row * gap as f64 / 2.0;
            svg.line("break", (left - 6.0, middle), (right, middle));
            y += row * gap as f64;
        }
        let high = row * run.rows.len() as f64;
        if high >= NAMED {
            let most = ((names - 10.0) / LETTER) as usize;
            svg.cut_text("name", "end", (left - 8.0, y + high / 2.0 + 4.0), &run.name, most);
        }
        y += high;
    }
    let steps = if size.is_narrow() { 4 } else { 8 };
    let axis = Axis::new(&Unit::Seconds, map.seconds, steps, (left, right), false);
    axis_below(&mut svg, &axis, bottom, &titled("recorded time", &axis.shown.name));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::HeatRun;

    #[test]
    fn what_is_touched_and_what_is_not_differ() {
        let cell = |touched_now, touched_before, never_touched, paged_out| {
            pixel(&HeatCell { touched_now, touched_before, never_touched, paged_out })
        };
        assert_eq!(cell(0.0, 0.0, 0.0, 0.0)[3], 0);
        assert_eq!(cell(1.0, 0.0, 0.0, 0.0), [0, 90, 181, 255]);
        assert_eq!(cell(0.0, 0.0, 1.0, 0.0), [230, 140, 0, 255]);
        let faint = cell(0.0, 0.01, 0.0, 0.0);
        assert!(faint[3] > 76 && faint[3] < 128, "{faint:?}");
    }

    #[test]
    fn the_highest_address_is_at_the_top() {
        let cell = HeatCell { touched_now: 1.0, ..HeatCell::default() };
        let run = |rows: usize, cell| HeatRun { name: String::new(), rows: vec![vec![cell; 2]; rows] };
        let map =
            HeatDrawing { seconds: 1.0, columns: 2, runs: vec![run(1, HeatCell::default()), run(2, cell)] };
        let file = png(&map, 3).expect("a file");
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a header");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut pixels).expect("pixels");
        assert_eq!((info.width, info.height), (2, 6));
        assert_eq!((&pixels[..4], &pixels[20 * 2..20 * 2 + 4]), (&[0, 90, 181, 255][..], &[0; 4][..]));
    }
}
