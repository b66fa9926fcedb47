"""Writes what Presidio's pattern recognisers find in a table of texts: the oracle of `tests/presidio.rs`.

    python -m venv /tmp/presidio && /tmp/presidio/bin/pip install presidio-analyzer==2.2.366
    /tmp/presidio/bin/python make_presidio_oracle.py > presidio_oracle.json

No language model is needed: each recogniser is called directly. Phone numbers are found by Google's libphonenumber.
"""

import json
import random
import sys

from presidio_analyzer import predefined_recognizers as known

# Our name, Presidio's recogniser, and its entity.
RECOGNISERS = [
    ("card", known.CreditCardRecognizer(), "CREDIT_CARD"),
    ("iban", known.IbanRecognizer(), "IBAN_CODE"),
    ("email", known.EmailRecognizer(), "EMAIL_ADDRESS"),
    ("ip", known.IpRecognizer(), "IP_ADDRESS"),
    ("crypto", known.CryptoRecognizer(), "CRYPTO"),
    ("us_ssn", known.UsSsnRecognizer(), "US_SSN"),
    ("uk_nhs", known.NhsRecognizer(), "UK_NHS"),
    ("es_nif", known.EsNifRecognizer(), "ES_NIF"),
    ("it_fiscal_code", known.ItFiscalCodeRecognizer(), "IT_FISCAL_CODE"),
    ("pl_pesel", known.PlPeselRecognizer(), "PL_PESEL"),
    ("in_aadhaar", known.InAadhaarRecognizer(), "IN_AADHAAR"),
    ("fi_person_id", known.FiPersonalIdentityCodeRecognizer(), "FI_PERSONAL_IDENTITY_CODE"),
    ("phone", known.PhoneRecognizer(supported_regions=["US"]), "PHONE_NUMBER"),
    ("mac", getattr(known, "MacAddressRecognizer", lambda: None)(), "MAC_ADDRESS"),
]

VALUES = {
    "card": ["4012888888881881", "4012-8888-8888-1881", "4012 8888 8888 1881", "5555555555554444", "378282246310005",
             "6011000400000000", "3528000700000000", "4012888888881882", "1748503543012", "30569309025904"],
    "iban": ["IL150120690000003111111", "IL15-0120-6900-0000-3111-111", "DE89370400440532013000",
             "DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "GB29 NWBK 6016 1331 9268 19",
             "FR1420041010050500013M02606", "NL91ABNA0417164300", "NO9386011117947", "DE89370400440532013001",
             "BE68539007547034", "CH9300762011623852957", "MT84MALT011000012345MTLCAST001S"],
    "email": ["info@presidio.site", "my.email+tag@example.co.uk", "a_b-c@sub.example.org", "x@y.com", "info@presidio.",
              "@example.com", "o'neil@example.com", "user%x@example.net", "two@at@example.com"],
    "ip": ["192.168.0.1", "8.8.8.8", "256.1.1.1", "1.2.3", "2001:db8::ff00:42:8329", "fe80::1ff:fe23:4567:890a",
           "684D:1111:222:3333:4444:5555:6:77", "10.0.0.256"],
    "crypto": ["16Yeky6GMjeNkAiNcBY7ZhrLoMSgg1BoyZ", "3Cbq7aT1tY8kMxWLbitaG7yT6bPbKChq64",
               "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
               "bc1p5d7rjq7g6rdk2yhzks9smlaqtedr4dekq08ge8ztwac72sfr9rusxg3297",
               "16Yeky6GMjeNkAiNcBY7ZhrLoMSgg1BoyX", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mda"],
    "us_ssn": ["078-05-1121", "778-62-8144", "778 62 8144", "778.62.8144", "000-12-3456", "666-12-3456", "123-45-6789",
               "078-05-1120", "778-00-8144", "778-62-0000"],
    "uk_nhs": ["401-023-2137", "221 395 1837", "0032698674", "401-023-2138", "9434765919"],
    "es_nif": ["55555555K", "55555555-K", "1111111-G", "01111111G", "55555555A", "12345678Z"],
    "it_fiscal_code": ["AAAAAA00B11C333N", "RSSMRA85T10A562S", "RSSMRA85T10A562T", "MRTMTT91D08F205J"],
    "pl_pesel": ["11111111114", "44051401359", "44051401358", "02070803628"],
    "in_aadhaar": ["312345678909", "399876543211", "3123-4567-8909", "3123 4567 8909", "312345678902"],
    "fi_person_id": ["010594Y9032", "131052-308T", "131052-308U", "010594Y9021", "311280-888Y"],
    "phone": ["(425) 882-8080", "425-882-8080", "425.882.8080", "+1 425-882-8080", "+44 20 7946 0958", "12 34"],
    "mac": ["00:1A:2B:3C:4D:5E", "00-1A-2B-3C-4D-5E", "001A.2B3C.4D5E", "00:1A:2B:3C:4D"],
}

FRAMES = ["{}", "my number is {} and that is all", "({})", "first {}, then {}", "a\n{}\nb", "value={};"]


def main():
    chosen = random.Random(1)
    rows = []
    for ours, recogniser, entity in RECOGNISERS:
        if recogniser is None:
            print(f"this Presidio has no recogniser for {ours}", file=sys.stderr)
            continue
        for value in VALUES[ours]:
            for frame in FRAMES[:2] + chosen.sample(FRAMES[2:], 2):
                other = chosen.choice(VALUES[ours])
                text = frame.format(value, other) if frame.count("{}") == 2 else frame.format(value)
                found = recogniser.analyze(text, [entity], None)
                spans = sorted({(result.start, result.end) for result in found if result.score > 0.2})
                rows.append({"entity": ours, "text": text, "found": [text[start:end] for start, end in spans]})
    json.dump(rows, sys.stdout, indent=0, ensure_ascii=False)
    print()


main()
