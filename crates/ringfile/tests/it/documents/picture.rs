//! The pictures of README and docs/performance.md, drawn from docs/figures.toml, so that they cannot differ from it.
//!
//! To draw them anew: `RINGFILE_TEST_WRITE_PICTURE=1 cargo test -p ringfile --test it the_pictures`.

use std::fmt::Write;

use super::figures::{Panel, Picture, read};

const WIDTH: usize = 340;
const LEFT: f64 = 142.0;
const ROW: usize = 24;
/// Where the panels begin below a title.
const BELOW_TITLE: usize = 34;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#57606a}.h{font-size:13px;font-weight:600;fill:#1b1f24}\
    .t{font-size:18px;font-weight:600;fill:#1b1f24}\
    .ours{fill:#0067a5}.other{fill:#6e7781}.paper{fill:#fff}\
    @media(prefers-color-scheme:dark){text{fill:#a3adb8}.h,.t{fill:#e6e9ec}.ours{fill:#58b4f0}.other{fill:#9aa4ae}.paper{fill:#14171b}}";

fn draw(panel: &Panel, svg: &mut String, left: usize, above: usize) {
    let values: Vec<f64> = panel.bars.iter().map(|(_, figure)| value(figure)).collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    let _ = writeln!(
        svg,
        "<g transform=\"translate({left} {above})\"><text class=\"h\" y=\"28\">{}</text>",
        panel.title
    );
    let _ = writeln!(svg, "<text y=\"46\">{}</text>", panel.unit);
    for (index, ((label, figure), value)) in panel.bars.iter().zip(values).enumerate() {
        let (top, width) = (60 + index * ROW, value / most * (WIDTH as f64 - LEFT - 46.0));
        let class = if label.starts_with("ringfile") { "ours" } else { "other" };
        let _ = writeln!(
            svg,
            "<text y=\"{}\">{label}</text><rect class=\"{class}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"16\"/>\
             <text x=\"{:.1}\" y=\"{}\">{figure}</text>",
            top + 12,
            LEFT + width + 6.0,
            top + 12
        );
    }
    svg.push_str("</g>\n");
}

/// Returns the value of a figure such as `83.9k` or `1,082`.
fn value(figure: &str) -> f64 {
    let (number, scale) = figure.strip_suffix('k').map_or((figure, 1.0), |number| (number, 1000.0));
    scale * number.replace(',', "").parse::<f64>().expect("a number")
}

fn drawn(picture: &Picture) -> String {
    let width = picture.panels.len() * (WIDTH + 24) + 8;
    let bars = picture.panels.iter().map(|panel| panel.bars.len()).max().unwrap();
    let above = if picture.title.is_some() { BELOW_TITLE } else { 0 };
    let height = above + 74 + bars * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"{}\">\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n",
        picture.says
    );
    if let Some(title) = &picture.title {
        let _ = writeln!(svg, "<text class=\"t\" x=\"16\" y=\"34\">{title}</text>");
    }
    for (index, panel) in picture.panels.iter().enumerate() {
        draw(panel, &mut svg, 16 + index * (WIDTH + 24), above);
    }
    svg + "</svg>\n"
}

#[test]
fn the_pictures_show_the_figures_of_the_file() {
    let Some(root) = super::root() else { return };
    for picture in read(root).1 {
        let path = root.join("docs").join(&picture.file);
        let wanted = drawn(&picture);
        if std::env::var_os("RINGFILE_TEST_WRITE_PICTURE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/{} is not what docs/figures.toml says: run this with RINGFILE_TEST_WRITE_PICTURE=1",
            picture.file
        );
    }
}
