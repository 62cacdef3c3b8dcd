//! Prices per generated image, by quality and size.

use std::collections::BTreeMap;

use penstock_llm::api_format::ImageParams;

type NameMap<T> = BTreeMap<Box<str>, T>;

/// Pico-dollars per image, by quality and then by size.
#[derive(Debug, Clone)]
pub struct ImagePrices(NameMap<NameMap<u64>>);

/// Key of the price that applies to each quality or size without a price of its own.
const DEFAULT_KEY: &str = "default";

/// Quality or size of the images of a request whose form body was not read yet.
pub const ANY: &str = "any";

impl ImagePrices {
    /// Returns `None` if there are no prices.
    pub fn from_published(prices: NameMap<NameMap<u64>>) -> Option<Box<Self>> {
        (!prices.is_empty()).then(|| Box::new(Self(prices)))
    }

    /// Returns a copy with each price converted by `other`.
    pub fn map_prices(&self, other: impl Fn(u64) -> u64) -> Self {
        let sizes = |sizes: &NameMap<u64>| sizes.iter().map(|(size, price)| (size.clone(), other(*price))).collect();
        Self(self.0.iter().map(|(quality, prices_by_size)| (quality.clone(), sizes(prices_by_size))).collect())
    }

    /// Returns the cost of all requested images in pico-dollars; `None` if no price matches.
    pub fn cost(&self, image_params: &ImageParams) -> Option<u128> {
        let sizes = pick_or_default(&self.0, &image_params.quality, "standard")?;
        let price = pick_or_default(sizes, &image_params.size, "1024x1024")?;
        Some(u128::from(*price) * u128::from(image_params.count))
    }

    /// Returns the highest cost that the requested images may have, in pico-dollars. If no price matches the request,
    /// assumes the highest one.
    pub fn highest_cost(&self, image_params: &ImageParams) -> u128 {
        let highest = || self.0.values().flat_map(BTreeMap::values).max().copied().unwrap_or(0);
        // The default price is not an upper bound if the quality or size is unknown, because a listed price may be
        // higher.
        let is_any = [&image_params.quality, &image_params.size].iter().any(|name| name.as_str() == ANY);
        let known = if is_any { None } else { self.cost(image_params) };
        known.unwrap_or_else(|| u128::from(highest()) * u128::from(image_params.count))
    }
}

/// Returns the entry for `requested`, or the default entry. An empty or `auto` value falls back to `default`, then to the
/// only entry.
fn pick_or_default<'t, T>(entries: &'t NameMap<T>, requested: &str, default: &str) -> Option<&'t T> {
    let price = entries.get(requested).or_else(|| entries.get(DEFAULT_KEY));
    if price.is_some() || !matches!(requested, "" | "auto") {
        return price;
    }
    entries.get(default).or_else(|| entries.values().next().filter(|_| entries.len() == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_cost_uses_the_exact_or_default_price() {
        let images = |json: &str| ImagePrices::from_published(serde_json::from_str(json).unwrap()).unwrap();
        let dall_e = images(r#"{"standard":{"1024x1024":40,"1024x1792":80},"hd":{"1024x1024":80,"default":120}}"#);
        let single_default = images(r#"{"default":{"default":7}}"#);
        let only = images(r#"{"high":{"512x512":5}}"#);
        for (images, (count, quality, size), expected) in [
            (&dall_e, (2, "standard", "1024x1792"), Some(160)),
            (&dall_e, (1, "", ""), Some(40)),
            (&dall_e, (3, "auto", "auto"), Some(120)),
            (&dall_e, (1, "hd", "1x1"), Some(120)),
            (&dall_e, (1, "standard", "1x1"), None),
            (&dall_e, (1, "low", "1024x1024"), None),
            (&single_default, (4, "hd", "1x1"), Some(28)),
            (&only, (1, "", "auto"), Some(5)),
            (&only, (1, "", "1x1"), None),
        ] {
            let image_params = ImageParams { count, quality: quality.into(), size: size.into() };
            assert_eq!(images.cost(&image_params), expected, "{image_params:?}");
        }
        let any = |quality: &str| ImageParams { count: 2, quality: quality.into(), size: ANY.into() };
        assert_eq!([dall_e.highest_cost(&any(ANY)), dall_e.highest_cost(&any("standard"))], [240, 240]);
        assert!(ImagePrices::from_published(NameMap::default()).is_none());
    }
}
