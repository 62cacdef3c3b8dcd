//! Image generation requests in a canonical form, and their responses in `OpenAI`'s format. An image is returned as
//! base64 or as a URL.

use serde_json::{Value, json};

use crate::{
    chat::response_context::ResponseContext,
    errors::RequestError,
    fields::{Fields, parse_body, take_string},
    reports::DroppedParams,
    usage::Usage,
};

/// Aspect ratio as width and height.
pub type AspectRatio = (u64, u64);

/// Image generation request in a canonical form.
#[derive(Debug, Default)]
pub struct ImageRequest {
    pub model: String,
    pub prompt: String,
    /// Number of images.
    pub count: Option<Value>,
    /// Width and height in pixels.
    pub size: Option<(u64, u64)>,
    /// All other fields. The provider format removes those that it supports.
    pub fields: Fields,
    pub dropped_params: DroppedParams,
}

impl ImageRequest {
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        let mut fields = parse_body(json)?;
        let missing = || RequestError::new("prompt", "must be a string");
        Ok(Self {
            model: take_string(&mut fields, "model").unwrap_or_default(),
            prompt: take_string(&mut fields, "prompt").ok_or_else(missing)?,
            count: fields.shift_remove("n").filter(|count| !count.is_null()),
            size: parse_size(&mut fields)?,
            fields,
            dropped_params: DroppedParams::default(),
        })
    }

    /// Moves a parameter to the provider's request unchanged, if it is set.
    pub fn move_field(&mut self, key: &str, to: &mut Value, name: &str) {
        if let Some(value) = self.fields.shift_remove(key).filter(|value| !value.is_null()) {
            to[name] = value;
        }
    }

    pub fn move_fields(&mut self, keys: &[&str], to: &mut Value) {
        for key in keys {
            self.move_field(key, to, key);
        }
    }

    /// Moves width and height to the fields that the provider has for them.
    pub fn move_dimensions(&mut self, to: &mut Value, width: &str, height: &str) {
        if let Some((wide, high)) = self.size.take() {
            (to[width], to[height]) = (wide.into(), high.into());
        }
    }

    pub fn move_count(&mut self, to: &mut Value, name: &str) {
        if let Some(count) = self.count.take() {
            to[name] = count;
        }
    }

    /// Moves the number of images, limited to what the provider generates at once. Reports a reduced number as dropped.
    pub fn move_limited_count(&mut self, max_count: u64, to: &mut Value, name: &str) {
        if self.count.as_ref().and_then(Value::as_u64).is_some_and(|count| count > max_count) {
            self.count = Some(max_count.into());
            self.dropped_params.add("n");
        }
        self.move_count(to, name);
    }

    /// Moves the size as the nearest aspect ratio that the provider supports. Reports the size as dropped if the ratio
    /// differs.
    pub fn move_aspect_ratio(&mut self, to: &mut Value, name: &str, ratios: &[AspectRatio]) {
        let Some(size) = self.size.take() else { return };
        let ratio_distance =
            |left: &AspectRatio| ((size.0 as f64 / size.1 as f64) / (left.0 as f64 / left.1 as f64)).ln().abs();
        let Some(nearest) = ratios.iter().min_by(|left, other| ratio_distance(left).total_cmp(&ratio_distance(other)))
        else {
            return;
        };
        let (wide, high) = nearest;
        if u128::from(size.0) * u128::from(*high) != u128::from(size.1) * u128::from(*wide) {
            self.dropped_params.add("size");
        }
        to[name] = format!("{wide}:{high}").into();
    }

    /// Rejects a request for more than one image.
    pub fn reject_multiple_images(&mut self) -> Result<(), RequestError> {
        match self.count.take() {
            Some(count) if count != 1 => Err(RequestError::new("n", "must be 1; this model makes one image at a time")),
            _ => Ok(()),
        }
    }

    /// Returns the parameters that the provider format did not use.
    pub fn into_dropped_params(mut self) -> DroppedParams {
        let is_left = |(name, is_there): (&'static str, bool)| is_there.then_some(name);
        let untranslated = [("n", self.count.is_some_and(|count| count != 1)), ("size", self.size.is_some())];
        untranslated.into_iter().filter_map(is_left).for_each(|name| self.dropped_params.add(name));
        // Base64 is the default response format, so a request for it is not reported as dropped.
        let is_default = |key: &str, value: &Value| value.is_null() || key == "response_format" && value == "b64_json";
        self.fields
            .iter()
            .filter(|(key, value)| !is_default(key, value))
            .for_each(|(key, _)| self.dropped_params.add(key));
        self.dropped_params
    }
}

fn parse_size(fields: &mut Fields) -> Result<Option<(u64, u64)>, RequestError> {
    let Some(text) = take_string(fields, "size").filter(|text| text != "auto") else { return Ok(None) };
    let sides = text.split_once('x').and_then(|(wide, high)| Some((wide.parse().ok()?, high.parse().ok()?)));
    let sides = sides.filter(|(wide, high)| *wide > 0 && *high > 0);
    sides.map(Some).ok_or_else(|| RequestError::new("size", "must be auto, or width and height such as 1024x1024"))
}

/// Generated images, each as base64 data or as a URL.
pub struct ImageResponse {
    pub images: Vec<Value>,
    /// Token usage, if the provider reports it.
    pub usage: Option<Usage>,
}

impl ImageResponse {
    /// Parses the image or array of images at a JSON pointer. Each is a string, or an object with the string at `key`.
    pub fn parse_images_at(response: &Value, pointer: &str, key: &str, output_key: &str) -> Option<Self> {
        let entry = |item: &Value| {
            let text = item.as_str().or_else(|| item[key].as_str())?;
            Some(json!({output_key: text}))
        };
        let images: Vec<_> = match response.pointer(pointer)? {
            Value::Array(items) => items.iter().filter_map(entry).collect(),
            item => entry(item).into_iter().collect(),
        };
        Self::from_images(images)
    }

    /// Creates a response with these images; `None` if there are none.
    pub fn from_images(images: Vec<Value>) -> Option<Self> {
        (!images.is_empty()).then_some(Self { images, usage: None })
    }

    pub fn into_client_json(self, context: &ResponseContext) -> Vec<u8> {
        let mut response = json!({"created": context.created, "data": self.images, "provider": context.provider});
        if let Some(cost) = &self.usage {
            response["usage"] = encode_usage(cost);
        }
        response.to_string().into_bytes()
    }
}

/// Encodes the usage of an image request in `OpenAI`'s format.
fn encode_usage(usage: &Usage) -> Value {
    let text = usage.total_output().saturating_sub(usage.image_out);
    json!({
        "total_tokens": usage.total(), "input_tokens": usage.total_input(), "output_tokens": usage.total_output(),
        "input_tokens_details": {"text_tokens": usage.total_input().saturating_sub(usage.image_in), "image_tokens": usage.image_in},
        "output_tokens_details": {"text_tokens": text, "image_tokens": usage.image_out},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_with_size(size: &str) -> Result<ImageRequest, RequestError> {
        ImageRequest::parse(json!({"prompt": "p", "size": size}).to_string().as_bytes())
    }

    #[test]
    fn size_must_be_two_positive_numbers() {
        assert_eq!(parse_with_size("auto").unwrap().size, None);
        for wrong in ["large", "0x10", "10x", "-1x2"] {
            assert_eq!(parse_with_size(wrong).unwrap_err().path, "size");
        }
    }

    #[test]
    fn picks_the_nearest_aspect_ratio_and_reports_a_changed_size() {
        const RATIOS: [AspectRatio; 5] = [(1, 1), (3, 4), (4, 3), (9, 16), (16, 9)];
        for (size, ratio, dropped) in [
            ("1024x1024", "1:1", ""),
            ("1920x1080", "16:9", ""),
            ("1792x1024", "16:9", "size"),
            ("1024x1792", "9:16", "size"),
            ("1536x1024", "4:3", "size"),
            ("1024x1536", "3:4", "size"),
            ("18446744073709551615x1", "16:9", "size"),
        ] {
            let (mut picture, mut to) = (parse_with_size(size).unwrap(), json!({}));
            picture.move_aspect_ratio(&mut to, "aspect_ratio", &RATIOS);
            assert_eq!(
                (to["aspect_ratio"].as_str(), picture.into_dropped_params().header_value().as_ref()),
                (Some(ratio), dropped),
                "{size}"
            );
        }
    }

    #[test]
    fn reports_unused_parameters_except_the_default_response_format() {
        let picture =
            ImageRequest::parse(br#"{"prompt":"p","n":2,"style":"vivid","response_format":"b64_json"}"#).unwrap();
        assert_eq!(picture.into_dropped_params().header_value(), "n, style");
    }
}
