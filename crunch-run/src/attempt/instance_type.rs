//! The instance type of this node and its price per hour, from the dispatcher's environment
//! variable `InstanceType`.

use std::time::Duration;

use serde_json::Value;

/// Variable set by upstream's dispatchers: JSON with ProviderType, Price, VCPUs, RAM and more.
const VARIABLE: &str = "InstanceType";

#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    text: String,
    /// Price per hour in the configuration's currency.
    price: f64,
}

impl Instance {
    /// `env` looks up a variable. A value that is not a JSON object is ignored.
    pub fn of(env: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let text = env(VARIABLE)?;
        let value: Value = serde_json::from_str(&text).ok()?;
        let price = value.as_object()?.get("Price").and_then(Value::as_f64);
        let price = price.filter(|price| price.is_finite() && *price > 0.0);
        Some(Self {
            text,
            price: price.unwrap_or(0.0),
        })
    }

    /// Content of node.json.
    pub fn text(&self) -> String {
        format!("{}\n", self.text.trim_end())
    }

    /// Cost of the given time, if the price is known.
    pub fn cost(&self, time: Duration) -> Option<f64> {
        (self.price > 0.0).then(|| self.price * time.as_secs_f64() / 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_costs_its_part_of_the_price_of_an_hour() {
        let hour = Duration::from_secs(3600);
        for (text, cost) in [
            (r#"{"Name": "a1", "Price": 0.5}"#, Some(Some(0.5))),
            (r#"{"Name": "a1", "Price": 0}"#, Some(None)),
            (r#"{"Name": "a1", "Price": -1}"#, Some(None)),
            (r#"{"Name": "a1"}"#, Some(None)),
            ("[1]", None),
            ("a1", None),
        ] {
            let instance = Instance::of(|_| Some(text.to_owned()));
            assert_eq!(instance.map(|one| one.cost(hour)), cost, "{text}");
        }
        assert_eq!(Instance::of(|_| None), None);
        let one = Instance::of(|_| Some(r#"{"Price": 1.2}"#.to_owned())).unwrap();
        assert_eq!(one.cost(hour / 2), Some(0.6));
        assert_eq!(one.text(), "{\"Price\": 1.2}\n");
    }
}
