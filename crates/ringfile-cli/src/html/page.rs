//! The skeleton of a page and its style.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Returns a page with that title.
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("ringfile ", env!("CARGO_PKG_VERSION")));
                title { (title) }
                // Else a browser asks a server for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(include_str!("plot.css"))) (PreEscaped(include_str!("page.css"))) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

/// Returns a section under a heading, with what its figures mean.
pub fn section(title: &str, meaning: &str, body: Markup) -> Markup {
    html! {
        section {
            h2 { (title) }
            @if !meaning.is_empty() { p.means { (meaning) } }
            (body)
        }
    }
}

/// Plots beside each other, as many as fit.
pub fn plots(plots: impl IntoIterator<Item = Markup>) -> Markup {
    html! { div.plots { @for plot in plots { (plot) } } }
}

/// Names and what belongs to them.
pub fn facts(facts: &[(&str, String)]) -> Markup {
    html! { dl.facts { @for (name, fact) in facts { div { dt { (name) } dd { bdi { (fact) } } } } } }
}

/// The same under a heading, if there is one; beside it where that fills the width.
pub fn group(heading: &str, markup: impl IntoIterator<Item = Markup>) -> Markup {
    let all: Vec<Markup> = markup.into_iter().collect();
    html! {
        @if heading.is_empty() {
            (plots(all))
        } @else {
            div.two[all.len() < 3] { h3 { (heading) } (plots(all)) }
        }
    }
}

/// One after the other.
pub fn all(parts: impl IntoIterator<Item = Markup>) -> Markup {
    html! { @for part in parts { (part) } }
}

/// Returns a drawing of another program as a picture: what it may run or fetch does not, and its style stays its own.
pub fn image(svg: &str, what: &str) -> Markup {
    let mut address = String::from("data:image/svg+xml,");
    for character in without_scripts(svg).chars() {
        match character {
            // As they are in an address, these would end it or the attribute, or mean something else.
            '%' | '#' | '"' | '&' | ':' | '\\' | '\t' | '\n' | '\r' | '\0'..='\u{1f}' | '\u{7f}'.. => {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    address += &format!("%{byte:02X}");
                }
            }
            plain => address.push(plain),
        }
    }
    html! { img.flame alt=(what) src=(PreEscaped(address)); }
}

/// Scripts do not run in a picture, and take more room than the rest of a small one.
fn without_scripts(svg: &str) -> String {
    let mut rest = svg;
    let mut kept = String::new();
    while let Some((before, script)) = rest.split_once("<script") {
        kept += before;
        rest = script.split_once("</script>").map_or("", |(_, after)| after);
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_keeps_its_markup_to_itself() {
        let image =
            image("<svg xmlns=\"http://x\">\n<script>a</script>100 % µ&amp;</svg>", "a <b>").into_string();
        assert_eq!(
            image,
            "<img class=\"flame\" alt=\"a &lt;b&gt;\" src=\"data:image/svg+xml,<svg xmlns=%22http%3A//x%22>%0A100 %25 \
             %C2%B5%26amp;</svg>\">"
        );
    }
}
