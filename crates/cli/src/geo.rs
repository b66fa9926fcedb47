//! Places and distances: cities with the cloud regions near them, great circles, and the light time along them. Must
//! not know what is measured.

use std::str::FromStr;
use std::time::Duration;

/// Earth's mean radius (IUGG, R₁).
const EARTH_KM: f64 = 6371.0;
/// Light in fibre takes 5 µs per km: c divided by the refractive index of fibre, 1.47 (ITU-T G.652).
const FIBRE_NANOS_PER_KM: f64 = 5_000.0;

/// A point on Earth.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GeoPlace {
    /// Name of the city or region, or the coordinates as they were given.
    pub(crate) name: String,
    latitude: f64,
    longitude: f64,
}

/// A city, its coordinates in degrees, and the cloud regions in or near it (AWS, Google, Azure).
type City = (&'static str, f64, f64, &'static [&'static str]);

const CITIES: &[City] = &[
    ("amsterdam", 52.37, 4.90, &["europe-west4", "westeurope"]),
    ("ashburn", 39.04, -77.49, &["us-east-1", "us-east4", "eastus", "eastus2"]),
    ("atlanta", 33.75, -84.39, &["us-east5"]),
    ("auckland", -36.85, 174.76, &["ap-southeast-6", "newzealandnorth"]),
    ("bangkok", 13.76, 100.50, &["ap-southeast-7"]),
    ("berlin", 52.52, 13.40, &["europe-west10"]),
    ("bogota", 4.71, -74.07, &[]),
    ("boston", 42.36, -71.06, &[]),
    ("brussels", 50.85, 4.35, &["europe-west1", "belgiumcentral"]),
    ("buenos-aires", -34.60, -58.38, &[]),
    ("cairo", 30.04, 31.24, &[]),
    ("calgary", 51.05, -114.07, &["ca-west-1"]),
    ("cape-town", -33.92, 18.42, &["af-south-1", "southafricawest"]),
    ("chicago", 41.88, -87.63, &["northcentralus"]),
    ("columbus", 39.96, -83.00, &["us-east-2"]),
    ("copenhagen", 55.68, 12.57, &["denmarkeast"]),
    ("council-bluffs", 41.26, -95.86, &["us-central1", "centralus"]),
    ("dallas", 32.78, -96.80, &["us-south1", "southcentralus"]),
    ("delhi", 28.61, 77.21, &["asia-south2"]),
    ("dubai", 25.20, 55.27, &["me-central-1", "uaenorth"]),
    ("dublin", 53.35, -6.26, &["eu-west-1", "northeurope"]),
    ("frankfurt", 50.11, 8.68, &["eu-central-1", "europe-west3", "germanywestcentral"]),
    ("geneva", 46.20, 6.14, &["switzerlandwest"]),
    ("hamina", 60.57, 27.20, &["europe-north1"]),
    ("helsinki", 60.17, 24.94, &[]),
    ("hong-kong", 22.32, 114.17, &["ap-east-1", "asia-east2", "eastasia"]),
    ("hyderabad", 17.39, 78.49, &["ap-south-2", "southindia"]),
    ("istanbul", 41.01, 28.98, &[]),
    ("jakarta", -6.21, 106.85, &["ap-southeast-3", "asia-southeast2", "indonesiacentral"]),
    ("johannesburg", -26.20, 28.05, &["africa-south1", "southafricanorth"]),
    ("lagos", 6.52, 3.38, &[]),
    ("las-vegas", 36.17, -115.14, &["us-west4"]),
    ("lisbon", 38.72, -9.14, &[]),
    ("london", 51.51, -0.13, &["eu-west-2", "europe-west2", "uksouth"]),
    ("los-angeles", 34.05, -118.24, &["us-west2"]),
    ("madrid", 40.42, -3.70, &["europe-southwest1", "spaincentral"]),
    ("melbourne", -37.81, 144.96, &["ap-southeast-4", "australia-southeast2", "australiasoutheast"]),
    ("mexico-city", 19.43, -99.13, &["mx-central-1", "northamerica-south1", "mexicocentral"]),
    ("milan", 45.46, 9.19, &["eu-south-1", "europe-west8", "italynorth"]),
    ("montreal", 45.50, -73.57, &["ca-central-1", "northamerica-northeast1", "canadaeast"]),
    ("mumbai", 19.08, 72.88, &["ap-south-1", "asia-south1", "westindia"]),
    ("nairobi", -1.29, 36.82, &[]),
    ("new-york", 40.71, -74.01, &[]),
    ("osaka", 34.69, 135.50, &["ap-northeast-3", "asia-northeast2", "japanwest"]),
    ("oslo", 59.91, 10.75, &["norwayeast"]),
    ("paris", 48.86, 2.35, &["eu-west-3", "europe-west9", "francecentral"]),
    ("phoenix", 33.45, -112.07, &["westus3"]),
    ("portland", 45.52, -122.68, &["us-west-2", "us-west1"]),
    ("prague", 50.08, 14.44, &[]),
    ("salt-lake-city", 40.76, -111.89, &["us-west3"]),
    ("san-francisco", 37.77, -122.42, &["us-west-1", "westus"]),
    ("santiago", -33.45, -70.67, &["southamerica-west1", "chilecentral"]),
    ("sao-paulo", -23.55, -46.63, &["sa-east-1", "southamerica-east1", "brazilsouth"]),
    ("seattle", 47.61, -122.33, &["westus2"]),
    ("seoul", 37.57, 126.98, &["ap-northeast-2", "asia-northeast3", "koreacentral"]),
    ("shanghai", 31.23, 121.47, &["chinaeast"]),
    ("singapore", 1.35, 103.82, &["ap-southeast-1", "asia-southeast1", "southeastasia"]),
    ("stockholm", 59.33, 18.07, &["eu-north-1", "europe-north2", "swedencentral"]),
    ("sydney", -33.87, 151.21, &["ap-southeast-2", "australia-southeast1", "australiaeast"]),
    ("taipei", 25.03, 121.57, &["ap-east-2", "asia-east1", "taiwannorth"]),
    ("tel-aviv", 32.09, 34.78, &["il-central-1", "me-west1", "israelcentral"]),
    ("tokyo", 35.68, 139.69, &["ap-northeast-1", "asia-northeast1", "japaneast"]),
    ("toronto", 43.65, -79.38, &["northamerica-northeast2", "canadacentral"]),
    ("turin", 45.07, 7.69, &["europe-west12"]),
    ("vienna", 48.21, 16.37, &["austriaeast"]),
    ("warsaw", 52.23, 21.01, &["europe-central2", "polandcentral"]),
    ("zaragoza", 41.65, -0.88, &["eu-south-2"]),
    ("zurich", 47.38, 8.54, &["eu-central-2", "europe-west6", "switzerlandnorth"]),
];

impl GeoPlace {
    /// The place of a server whose host name contains a cloud region, such as
    /// `bedrock-runtime.eu-central-1.amazonaws.com`. `None` if no label of the name is a known region.
    pub(crate) fn of_host(host: &str) -> Option<Self> {
        let labels = host.split('.');
        let of_label = |label: &str| {
            let (city, latitude, longitude, _) = CITIES
                .iter()
                .find(|(_, _, _, regions)| regions.iter().any(|region| region_in(label, region)))?;
            Some(Self { name: (*city).to_owned(), latitude: *latitude, longitude: *longitude })
        };
        labels.into_iter().find_map(of_label)
    }

    /// Great-circle distance between two places in kilometres, by the haversine formula.
    pub(crate) fn kilometres(&self, other: &Self) -> f64 {
        let (a, b) = (self.latitude.to_radians(), other.latitude.to_radians());
        let half = |from: f64, to: f64| ((to - from) / 2.0).sin().powi(2);
        let longitudes = half(self.longitude.to_radians(), other.longitude.to_radians());
        let h = half(a, b) + a.cos() * b.cos() * longitudes;
        2.0 * EARTH_KM * h.sqrt().clamp(0.0, 1.0).asin()
    }
}

/// Whether a label of a host name is a region, or begins or ends with one at a hyphen. Google writes
/// `us-central1-aiplatform`.
fn region_in(label: &str, region: &str) -> bool {
    label == region
        || label.strip_prefix(region).is_some_and(|rest| rest.starts_with('-'))
        || label.strip_suffix(region).is_some_and(|rest| rest.ends_with('-'))
}

/// The shortest possible round trip over a distance, in fibre along the great circle. Real routes are longer.
pub(crate) fn floor(kilometres: f64) -> Duration {
    let nanos = kilometres.max(0.0) * FIBRE_NANOS_PER_KM * 2.0;
    Duration::try_from_secs_f64(nanos / 1e9).unwrap_or_default()
}

impl FromStr for GeoPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_lowercase().replace(' ', "-");
        if let Some((latitude, longitude)) = text.split_once(',') {
            let degrees = |text: &str, most: f64| {
                let number = text.trim().parse::<f64>().ok()?;
                (number.abs() <= most).then_some(number)
            };
            return match (degrees(latitude, 90.0), degrees(longitude, 180.0)) {
                (Some(latitude), Some(longitude)) => Ok(Self { name, latitude, longitude }),
                _ => Err("must be LATITUDE,LONGITUDE in degrees, such as 47.38,8.54".to_owned()),
            };
        }
        let known =
            CITIES.iter().find(|(city, _, _, regions)| *city == name || regions.contains(&name.as_str()));
        let Some((_, latitude, longitude, _)) = known else {
            let cities: Vec<_> = CITIES.iter().map(|(city, ..)| *city).collect();
            return Err(format!(
                "is no place that is known here; give LATITUDE,LONGITUDE, a region of AWS, Google or Azure, or one of {}",
                cities.join(", ")
            ));
        };
        Ok(Self { name, latitude: *latitude, longitude: *longitude })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> GeoPlace {
        text.parse().unwrap()
    }

    #[test]
    fn distances_are_those_of_great_circles() {
        // Published: Paris–New York 5,837 km; London–Sydney 16,994 km; London–Paris 344 km; half of the equator 20,015
        // km.
        for (from, to, km) in [
            ("paris", "new-york", 5_837.0),
            ("london", "sydney", 16_994.0),
            ("London", "eu-west-3", 344.0),
            ("0,0", "0,180", 20_015.0),
            ("90,0", "-90,77", 20_015.0),
            ("zurich", "switzerlandnorth", 0.0),
        ] {
            let found = place(from).kilometres(&place(to));
            assert!((found - km).abs() <= km * 0.003 + 1.0, "{from} {to}: {found}");
        }
    }

    #[test]
    fn light_takes_five_microseconds_for_a_kilometre_and_comes_back() {
        assert_eq!(floor(1_000.0), Duration::from_millis(10));
        assert_eq!(floor(0.0), Duration::ZERO);
        assert_eq!(floor(f64::NAN), Duration::ZERO);
    }

    #[test]
    fn a_name_may_say_where_its_server_is() {
        for (host, city) in [
            ("bedrock-runtime.eu-central-1.amazonaws.com", Some("frankfurt")),
            ("us-central1-aiplatform.googleapis.com", Some("council-bluffs")),
            ("mine.swedencentral.inference.ai.azure.com", Some("stockholm")),
            ("api.openai.com", None),
            ("eu-central-12.example.com", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(GeoPlace::of_host(host).map(|place| place.name).as_deref(), city, "{host}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_way_out() {
        for (text, part) in
            [("atlantis", "LATITUDE,LONGITUDE"), ("91,0", "in degrees"), ("1,x", "in degrees")]
        {
            let why = text.parse::<GeoPlace>().unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        for (at, (city, latitude, longitude, regions)) in CITIES.iter().enumerate() {
            assert!(latitude.abs() <= 90.0 && longitude.abs() <= 180.0, "{city}");
            let twice = |name: &str| {
                CITIES.iter().skip(at + 1).any(|(other, _, _, more)| *other == name || more.contains(&name))
            };
            assert!(!twice(city) && !regions.iter().any(|region| twice(region)), "{city} stands there twice");
        }
    }
}
