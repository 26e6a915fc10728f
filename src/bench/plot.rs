//! Pictures of results, as SVG files: of one run, or of many along something that grew.

use std::{collections::BTreeMap, path::Path};

use plotters::{
    coord::{Shift, ranged1d::Ranged, ranged1d::ValueFormatter},
    prelude::*,
};
use serde_json::Value;

use super::{BenchError, Report};

/// A line of a chart: its name and its points.
type Curve = (String, Vec<(f64, f64)>);
/// The points of each line of a chart.
type Curves = BTreeMap<String, Vec<(f64, f64)>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 1100;
const LEGEND_WIDTH: u32 = 220;
/// Room for half of the last label.
const RIGHT_MARGIN: u32 = 48;
const PANEL_HEIGHT: u32 = 320;
/// The lowest value of a logarithmic axis.
const LOG_LEAST: f64 = 1e-3;
const LABEL: (&str, i32) = ("sans-serif", 13);
const CAPTION: (&str, i32) = ("sans-serif", 16);

/// Draws one run: its latency percentiles and, if it had more than one, its seconds.
///
/// # Errors
/// If the file cannot be written.
pub fn plot_report(report: &Report, path: &Path) -> Result<(), BenchError> {
    let moment =
        |of: fn(&super::report::Moment) -> f64| report.timeline.iter().map(|one| (one.second, of(one))).collect();
    let mut panels = Vec::new();
    let percentiles: Vec<Curve> = report
        .latencies
        .iter()
        .map(|(name, of)| (name.clone(), of.curve.clone()))
        .filter(|(_, curve)| curve.len() > 1)
        .collect();
    if !percentiles.is_empty() {
        panels.push(Panel {
            caption: "latency in ms, by percentile".into(),
            x: Axis::Nines,
            log_y: true,
            curves: percentiles,
        });
    }
    if report.timeline.len() > 1 {
        let rate = vec![("messages a second".to_owned(), moment(|one| one.per_second))];
        panels.push(Panel {
            caption: "messages a second, over the seconds of the run".into(),
            x: Axis::Number,
            log_y: false,
            curves: rate,
        });
        let latencies = vec![
            ("p50".to_owned(), moment(|one| one.p50)),
            ("p99".to_owned(), moment(|one| one.p99)),
            ("max".to_owned(), moment(|one| one.max)),
        ];
        panels.push(Panel {
            caption: "latency in ms, over the seconds of the run".into(),
            x: Axis::Number,
            log_y: true,
            curves: latencies,
        });
    }
    draw(path, &format!("{} to {}", report.name, report.address), &panels)
}

/// Draws many runs along the label `by`: throughput, p99 latencies, the broker's CPU and its memory. `results` has a report in JSON on each line;
/// lines without the label are passed over. Runs that differ in the label `series` are different lines.
///
/// # Errors
/// If a line is no JSON, no line has the label, or the file cannot be written.
pub fn plot_results(results: &str, by: &str, series: Option<&str>, path: &Path) -> Result<(), BenchError> {
    let failed = |what: String| BenchError::Plot { path: path.to_owned(), what };
    let mut runs = Vec::new();
    for (nth, line) in results.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let run: Value = serde_json::from_str(line).map_err(|error| failed(format!("line {}: {error}", nth + 1)))?;
        if let Some(label) = run["labels"][by].as_str() {
            let number = label.replace('_', "").parse::<f64>().ok();
            runs.push((number, label.to_owned(), run));
        }
    }
    if runs.is_empty() {
        return Err(failed(format!("no run has the label {by:?}")));
    }
    runs.sort_by(|one, other| one.0.unwrap_or(f64::MAX).total_cmp(&other.0.unwrap_or(f64::MAX)));
    // Each value has the same room, whatever its size: 0, 1 million and 100 million fit beside each other.
    let mut places: Vec<String> = Vec::new();
    let mut panels: [Curves; 4] = Default::default();
    for (_, label, run) in &runs {
        if places.last() != Some(label) {
            places.push(label.clone());
        }
        let x = (places.len() - 1) as f64;
        let name = series.and_then(|series| run["labels"][series].as_str()).unwrap_or("");
        let mut put = |panel: usize, what: &str, value: &Value, unit: f64| {
            let name = [name, what].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
            if let Some(value) = value.as_f64() {
                panels[panel].entry(name).or_default().push((x, value / unit));
            }
        };
        put(0, "", &run["perSecond"], 1.0);
        for (what, of) in run["latencies"].as_object().into_iter().flatten() {
            put(1, what, &of["p99"], 1.0);
        }
        put(2, "", &run["broker"]["cpuSecondsPerMillion"], 1.0);
        put(3, "", &run["broker"]["rssAnon"], f64::from(1 << 20));
    }
    let captions = [
        "messages a second",
        "p99 in ms",
        "CPU seconds of the broker per million messages",
        "RssAnon of the broker, MiB",
    ];
    let panel = |(caption, curves): (&str, Curves)| Panel {
        caption: format!("{caption}, by {by}"),
        x: Axis::Places(places.clone()),
        log_y: false,
        curves: curves.into_iter().collect(),
    };
    let panels: Vec<Panel> =
        captions.into_iter().zip(panels).filter(|(_, curves)| !curves.is_empty()).map(panel).collect();
    draw(path, "", &panels)
}

/// A chart.
struct Panel {
    caption: String,
    x: Axis,
    log_y: bool,
    curves: Vec<Curve>,
}

/// What runs along a chart.
enum Axis {
    Number,
    /// 0 is the least, 1 is p90, 2 is p99 …
    Nines,
    /// Names at 0, 1, 2 …
    Places(Vec<String>),
}

impl Axis {
    fn label(&self, x: f64) -> String {
        let whole = (x - x.round()).abs() < 1e-6;
        match self {
            Self::Number if whole => format!("{x:.0}"),
            Self::Nines if whole && x <= 0.5 => "0 %".into(),
            Self::Nines if whole => format!("{} %", 100.0 - 10_f64.powi(2 - x.round() as i32)),
            Self::Places(names) if whole => names.get(x.round().abs() as usize).cloned().unwrap_or_default(),
            Self::Number | Self::Nines | Self::Places(_) => String::new(),
        }
    }
}

fn draw(path: &Path, title: &str, panels: &[Panel]) -> Result<(), BenchError> {
    let failed = |error: &dyn std::fmt::Display| BenchError::Plot { path: path.to_owned(), what: error.to_string() };
    let height = PANEL_HEIGHT * (panels.len().max(1) as u32) + if title.is_empty() { 0 } else { 40 };
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let root =
        if title.is_empty() { root } else { root.titled(title, ("sans-serif", 20)).map_err(|error| failed(&error))? };
    for (area, panel) in root.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
        draw_panel(area, panel).map_err(|error| failed(&error))?;
    }
    // Says so if the file cannot be written; dropping it would not.
    root.present().map_err(|error| failed(&error))
}

fn draw_panel<'a>(area: &Area<'a>, panel: &Panel) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let points = || panel.curves.iter().flat_map(|(_, points)| points);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    let right = most(|point| point.0).max(1.0);
    let top = (most(|point| point.1) * 1.1).max(1e-3);
    let (area, legend) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    draw_legend(&legend, panel)?;
    let mut builder = ChartBuilder::on(&area);
    builder
        .caption(&panel.caption, CAPTION)
        .margin(12)
        .margin_right(RIGHT_MARGIN)
        .x_label_area_size(28)
        .y_label_area_size(72);
    if panel.log_y {
        let least = (points().map(|point| point.1).fold(top, f64::min) * 0.9).max(LOG_LEAST);
        draw_curves(builder.build_cartesian_2d(0.0..right, (least..top.max(least * 10.0)).log_scale())?, panel, least)
    } else {
        draw_curves(builder.build_cartesian_2d(0.0..right, 0.0..top)?, panel, 0.0)
    }
}

fn draw_curves<'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
    panel: &Panel,
    least: f64,
) -> Result<(), Box<dyn std::error::Error + 'a>>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let labels = match &panel.x {
        Axis::Places(names) => names.len(),
        _ => 11,
    };
    let number = |y: &f64| {
        let text = if *y >= 100.0 { format!("{y:.0}") } else { format!("{y:.3}") };
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(labels.max(2))
        .x_label_formatter(&|x| panel.x.label(*x))
        .y_label_formatter(&number)
        .label_style(LABEL)
        .draw()?;
    for (nth, (_, points)) in panel.curves.iter().enumerate() {
        let colour = Palette99::pick(nth).mix(1.0);
        let points = points.iter().map(|&(x, y)| (x, y.max(least)));
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        if matches!(panel.x, Axis::Places(_)) {
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
        }
    }
    Ok(())
}

/// The names of the curves, beside the chart, where they hide nothing.
fn draw_legend<'a>(area: &Area<'a>, panel: &Panel) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let named = panel.curves.iter().enumerate().filter(|(_, (name, _))| !name.is_empty());
    for (nth, (name, _)) in named {
        let y = 50 + 20 * nth as i32;
        let colour = Palette99::pick(nth).mix(1.0);
        area.draw(&PathElement::new([(0, y), (16, y)], colour.stroke_width(3)))?;
        area.draw(&Text::new(name.as_str(), (22, y - 6), LABEL))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_percentile_has_its_nines() {
        let labels: Vec<String> = [0.0, 1.0, 2.0, 3.0, 1.5].iter().map(|x| Axis::Nines.label(*x)).collect();
        assert_eq!(labels, ["0 %", "90 %", "99 %", "99.9 %", ""]);
    }

    #[test]
    fn runs_are_drawn_in_the_order_of_what_grew_and_a_bad_line_is_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("plot.svg");
        let run = |pending: &str, per_second: u32| {
            format!(
                r#"{{"labels":{{"pending":"{pending}"}},"perSecond":{per_second},"latencies":{{"answer":{{"p99":1.5}}}},"broker":{{"cpuSecondsPerMillion":2.5,"rssAnon":1048576}}}}"#
            )
        };
        let results = [run("100_000_000", 1), run("0", 2), run("1000000", 3), "{}".into()].join("\n");

        plot_results(&results, "pending", None, &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        let at = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} is missing"));
        assert!(at("\n1000000\n") < at("\n100_000_000\n"), "the larger stands to the right");
        for caption in ["messages a second, by pending", "p99 in ms", "CPU seconds", "RssAnon"] {
            at(caption);
        }
        let error = plot_results("{}\nx", "pending", None, &path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        let error = plot_results(&results, "topics", None, &path).unwrap_err().to_string();
        assert!(error.contains("no run has the label \"topics\""), "{error}");
        assert!(plot_results(&results, "pending", None, Path::new("/nonexistent/plot.svg")).is_err());
    }
}
