//! Pages in a browser: at 1280 and 400 pixels, light and dark, nothing cut off, no error on the console.
//!
//! Needs Chromium. The pictures stay in the target's temporary folder, so that a person can look at them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::pages::page_of;
use super::samples::{batch, buffers, pool, with_others};
use crate::support::{folder, skip};

/// Widths of windows in pixels.
const WIDTHS: [u32; 2] = [1280, 400];

/// Checks a page in a frame of each width, and returns its defects as JSON: elements that cross an edge, small text in
/// plots, and the number of plots.
const EXAMINE: &str = r#"
<script>
const wide = name => Array.from(document.querySelectorAll('iframe'));
window.onload = () => {
  const found = wide().map(frame => {
    const page = frame.contentDocument, view = page.documentElement.clientWidth, over = [];
    for (const details of page.querySelectorAll('details')) details.open = true;
    for (const element of page.querySelectorAll('body *')) {
      const box = element.getBoundingClientRect();
      if (box.width > 0 && (box.right > view + 0.5 || box.left < -0.5)) over.push(element.outerHTML.slice(0, 120));
      if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && getComputedStyle(element).overflowX !== 'visible')
        over.push('scrolls: ' + element.outerHTML.slice(0, 120));
    }
    let smallest = 1e9, outside = [], empty = 0, points = 0;
    const plots = page.querySelectorAll('svg.plot');
    for (const plot of plots) {
      const frame = plot.getBoundingClientRect(), scale = frame.width / plot.viewBox.baseVal.width;
      for (const text of plot.querySelectorAll('text')) {
        const box = text.getBoundingClientRect();
        smallest = Math.min(smallest, parseFloat(getComputedStyle(text).fontSize) * scale);
        if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.bottom > frame.bottom + 0.5 || box.top < frame.top - 0.5)
          outside.push(text.textContent);
      }
      const drawn = plot.querySelectorAll('path.m');
      points += drawn.length;
      if (drawn.length === 0 || plot.querySelectorAll('path[d=""]').length > 0) empty += 1;
      for (const shape of drawn) {
        const box = shape.getBoundingClientRect();
        if (!(box.width > 1) || box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
          outside.push(shape.outerHTML.slice(0, 80));
      }
    }
    return { view, scroll: page.documentElement.scrollWidth, over, smallest, outside, empty, points, plots: plots.length,
             height: page.documentElement.scrollHeight };
  });
  document.getElementById('found').textContent = JSON.stringify(found);
};
</script>
"#;

/// Names under which Chromium is installed.
fn chromium() -> Option<&'static str> {
    let runs = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs)
}

/// Runs it to its end with a new profile, without network.
fn browse(browser: &str, profile: &Path, arguments: &[String]) -> Output {
    let mut command = Command::new(browser);
    let options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars \
                   --disable-background-networking --disable-component-update --disable-sync \
                   --enable-logging=stderr --virtual-time-budget=2000";
    command.args(options.split(' '));
    command.arg(format!("--user-data-dir={}", profile.display())).args(arguments);
    command.output().expect("the browser starts")
}

/// Returns the messages that the page wrote to the console.
fn console(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().filter(|line| line.contains("CONSOLE")).map(str::to_string).collect()
}

/// Returns the defects found in the page at each width.
fn examine(browser: &str, folder: &Path, page: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(page).expect("the page");
    let quoted = text.replace('&', "&amp;").replace('"', "&quot;");
    let frames: String = WIDTHS
        .iter()
        .map(|width| {
            format!("<iframe style=\"width:{width}px;height:900px;border:0\" srcdoc=\"{quoted}\"></iframe>")
        })
        .collect();
    let around = folder.join("around.html");
    std::fs::write(
        &around,
        format!("<!DOCTYPE html><meta charset=utf-8><pre id=found></pre>{frames}{EXAMINE}"),
    )
    .expect("write");
    let arguments = ["--dump-dom".to_string(), format!("file://{}", around.display())];
    let output = browse(browser, &folder.join("profile"), &arguments);
    assert_eq!(console(&output), Vec::<String>::new());
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let found = found.map(|(found, _)| found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"));
    serde_json::from_str(&found.expect("the page was examined")).expect("JSON")
}

/// Takes a picture of a page, and returns how many pixels have each colour.
fn picture(
    browser: &str,
    folder: &Path,
    page: &Path,
    name: &str,
    width: u32,
    height: u64,
    dark: bool,
) -> Vec<u8> {
    let scheme = if dark { "dark" } else { "light" };
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}-{width}-{scheme}.png"));
    let _ = std::fs::remove_file(&path);
    // A window cannot be as narrow as a telephone, so the page is shown in a frame.
    let around = folder.join(format!("frame-{width}.html"));
    let frame = format!(
        "<!DOCTYPE html><meta name=color-scheme content=\"light dark\"><style>body{{margin:0}}iframe{{border:0;display:block}}</style><iframe width={width} height={height} src=\"file://{}\"></iframe>",
        page.display()
    );
    std::fs::write(&around, frame).expect("write");
    let arguments = [
        format!("--screenshot={}", path.display()),
        format!("--window-size={width},{height}"),
        format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)),
        format!("file://{}", around.display()),
    ];
    let output = browse(browser, &folder.join("profile"), &arguments);
    assert_eq!(console(&output), Vec::<String>::new());
    let file = std::io::BufReader::new(std::fs::File::open(&path).expect("a picture"));
    let mut reader = png::Decoder::new(file).read_info().expect("PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
    let frame = reader.next_frame(&mut pixels).expect("pixels");
    assert!(frame.width >= width, "{} pixels wide", frame.width);
    let channels = frame.color_type.samples();
    pixels[..frame.buffer_size()].chunks(channels).flat_map(|pixel| pixel[..3].to_vec()).collect()
}

/// Returns the fraction of the pixels that differ from the first one.
fn drawn(pixels: &[u8]) -> f64 {
    let paper = &pixels[..3];
    let other = pixels.chunks(3).filter(|pixel| *pixel != paper).count();
    other as f64 * 3.0 / pixels.len() as f64
}

fn show(name: &str, sample: &Value, plots: u64, pictures: bool) {
    let Some(browser) = chromium() else {
        return skip("chromium is not installed");
    };
    let folder = folder();
    let page = page_of(folder.path(), sample);
    // Kept with the pictures, so that a person can open it.
    std::fs::copy(&page, Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}.html")))
        .expect("copy");
    let found = examine(browser, folder.path(), &page);
    assert_eq!(found.len(), WIDTHS.len());
    for (found, width) in found.iter().zip(WIDTHS) {
        assert_eq!(found["view"], width, "{found:#}");
        assert!(
            found["scroll"].as_u64().expect("a width") <= u64::from(width),
            "scrolls sideways: {found:#}"
        );
        assert_eq!(found["over"], Value::Array(Vec::new()), "cut off at {width}");
        assert_eq!(found["outside"], Value::Array(Vec::new()), "outside of its plot at {width}");
        assert_eq!(found["empty"], 0, "a plot without points");
        assert!(found["plots"].as_u64() >= Some(plots), "{found:#}");
        let smallest = &found["smallest"];
        assert!(smallest.as_f64() >= Some(11.0), "small text at {width}: {smallest}");
    }
    for width in WIDTHS.into_iter().filter(|_| pictures) {
        let paper = |dark| {
            let pixels = picture(browser, folder.path(), &page, name, width, 4000, dark);
            assert!(drawn(&pixels) > 0.02, "{name} at {width}, dark {dark}: a blank picture");
            u32::from(pixels[0]) + u32::from(pixels[1]) + u32::from(pixels[2])
        };
        let (light, dark) = (paper(false), paper(true));
        assert!(light > 700 && dark < 120, "background colours {light} and {dark}");
    }
}

#[test]
fn a_grid_is_shown_whole() {
    show("buffers", &with_others(buffers(1, 1.0, 1.04)), 32, true);
}

#[test]
fn a_pool_and_batches_are_shown_whole() {
    show("pool", &pool(), 4, false);
    show("batch", &batch(), 4, false);
}

#[test]
fn long_names_are_shown_whole() {
    let mut sample = batch();
    sample["params"]["file"] = format!("/tmp/{}", "long".repeat(60)).into();
    sample["command"] = format!("ringfile perf batch --file /tmp/{}", "long".repeat(60)).into();
    show("long", &sample, 4, false);
}
