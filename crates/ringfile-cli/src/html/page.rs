//! The skeleton of a page and its style.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Returns a page with this title.
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("ringfile ", env!("CARGO_PKG_VERSION")));
                title { (title) }
                // Keeps browsers from requesting one from the server.
                link rel="icon" href="data:,";
                style { (PreEscaped(include_str!("plot.css"))) (PreEscaped(include_str!("page.css"))) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

/// Returns a section with its heading and an explanation of its figures.
pub fn section(title: &str, meaning: &str, body: Markup) -> Markup {
    html! {
        section {
            h2 { (title) }
            @if !meaning.is_empty() { p.means { (meaning) } }
            (body)
        }
    }
}

/// Returns plots side by side, as many as fit.
pub fn plots(plots: impl IntoIterator<Item = Markup>) -> Markup {
    html! { div.plots { @for plot in plots { (plot) } } }
}

/// Returns a list of names and values.
pub fn facts(facts: &[(&str, String)]) -> Markup {
    html! { dl.facts { @for (name, fact) in facts { div { dt { (name) } dd { bdi { (fact) } } } } } }
}

/// Returns plots under their heading, if there is one; larger ones if they are few.
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

/// Returns another program's drawing as an image, in which nothing runs or loads, and whose style does not leak out.
pub fn image(svg: &str, what: &str) -> Markup {
    let mut address = String::from("data:image/svg+xml,");
    for character in without_scripts(svg).chars() {
        match character {
            // Unescaped, these would end the address or the attribute, or mean something else.
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

/// Removes scripts: they do not run in an image, and take more space than the rest of a small one.
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
