//! Highest cost that a request may have, before its usage is known. Hard budgets reserve it.

use penstock_llm::api_format::ImageParams;

use super::{Price, RequestPricing, to_nanodollars};

/// Upper bounds of the usage of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct HighestUsage<'r> {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Number of rerank queries, as providers bill them.
    pub rankings: u64,
    /// Number, quality and size of the requested images.
    pub images: Option<&'r ImageParams>,
}

impl RequestPricing {
    /// Returns the highest cost in nano-dollars that usage within these bounds may have. Assumes the most expensive
    /// kind of tokens and service tier. `None` if no price is known.
    pub fn highest_cost(&self, provider: &str, model: &str, at: u64, most: &HighestUsage<'_>) -> Option<u64> {
        self.apply_price(provider, model, at, |price| price.highest_cost(most))
    }
}

impl Price {
    /// Returns the highest cost of usage within these bounds, in whole nano-dollars.
    fn highest_cost(&self, most: &HighestUsage<'_>) -> u64 {
        let tiers = std::iter::once(&self.rate_tiers).chain(self.service_tiers.iter().map(|(_, scale)| scale));
        let tokens = tiers.map(|scale| scale.highest_picodollars(most)).max().unwrap_or(0);
        let images = match (most.images, &self.image_prices) {
            (Some(params), Some(prices)) => prices.highest_cost(params),
            _ => 0,
        };
        to_nanodollars(u128::from(self.request_picodollars).saturating_add(tokens).saturating_add(images))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use penstock_llm::usage::{ServiceTier, Usage};

    use super::*;
    use crate::accounting::prices::Prices;

    #[test]
    fn highest_cost_covers_every_kind_of_token_and_service_tier() {
        let json = r#"{"sellers":{"p":["l"]},"lists":{"l":[{"names":{"is":"m"},"prices":[{"version":"v","request":5000,
            "rates":{"input":[[0,1000],[200,3000]],"output":[[0,2000]],"cache_write_1h":[[0,4000]],"audio_out":[[0,9000]],
            "search":[[0,7000]]},
            "services":{"priority":{"output":[[0,20000]]}},
            "images":{"standard":{"1024x1024":40000},"hd":{"1024x1024":90000}}}]}]}}"#;
        let mut problems = Vec::new();
        let prices = Prices::compile(serde_json::from_str(json).unwrap(), &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let pricing = RequestPricing { prices: Arc::new(prices), ..RequestPricing::default() };
        let usage_of =
            |input_tokens, output_tokens| HighestUsage { input_tokens, output_tokens, ..HighestUsage::default() };
        let cost = |usage: &HighestUsage<'_>| pricing.highest_cost("p", "m", 0, usage).unwrap();
        assert_eq!(cost(&usage_of(10, 3)), 5 + 10 * 4 + 3 * 20);
        for usage in [
            Usage { cache_write_1h: 10, audio_out: 3, ..Usage::default() },
            Usage { input: 10, reasoning: 3, service_tier: ServiceTier::Priority, ..Usage::default() },
        ] {
            assert!(pricing.cost("p", "m", 0, &usage).unwrap().nanodollars <= cost(&usage_of(10, 3)), "{usage:?}");
        }
        assert_eq!(cost(&HighestUsage { rankings: 2, ..HighestUsage::default() }), 5 + 14);
        let image_params = |quality: &str| ImageParams { count: 2, quality: quality.into(), size: String::new() };
        let with_images =
            |params: &ImageParams| cost(&HighestUsage { images: Some(params), ..HighestUsage::default() });
        assert_eq!((with_images(&image_params("standard")), with_images(&image_params(""))), (5 + 80, 5 + 80));
        assert_eq!(with_images(&image_params("unknown")), 5 + 180);
        assert_eq!(pricing.highest_cost("p", "other", 0, &usage_of(1, 1)), None);
    }
}
