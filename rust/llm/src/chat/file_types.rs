//! MIME types of files, by the extension of their names or by their first bytes.

/// First characters of base64 data, and the MIME type that these bytes identify.
const BASE64_PREFIXES: [(&str, &str); 4] =
    [("JVBERi", "application/pdf"), ("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif")];

/// Returns the MIME type of base64 data by its first bytes.
pub fn mime_of_base64(data: &str) -> Option<&'static str> {
    BASE64_PREFIXES.iter().find(|(prefix, _)| data.starts_with(prefix)).map(|(_, mime)| *mime)
}

/// Returns the MIME type for the extension of a file name.
pub fn mime_of_file(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "mp4" => "video/mp4",
        "mp3" => "audio/mp3",
        "wav" => "audio/wav",
        "txt" | "log" => "text/plain",
        "md" | "markdown" => "text/markdown",
        "csv" => "text/csv",
        "htm" | "html" => "text/html",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls" => "application/vnd.ms-excel",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::request::Source;

    #[test]
    fn the_type_of_a_file_comes_from_its_name_or_its_first_bytes() {
        let data = |mime: &str, data: &str| Source::Data { mime: mime.into(), data: data.into() };
        for (name, bytes, mime) in [
            (Some("a.docx"), "UEsDBA==", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
            (None, "JVBERi0xLjQK", "application/pdf"),
            (Some("scan"), "iVBORw0KGgoAAAA=", "image/png"),
            (Some("a.bin"), "AAECAw==", "application/octet-stream"),
            (None, "UEsDBA==", "application/octet-stream"),
        ] {
            assert_eq!(data("", bytes).with_type_of_file(name), data(mime, bytes), "{name:?}");
        }
        assert_eq!(mime_of_file("noextension"), None);
    }
}
