"""The capitals of the 193 member states of the United Nations, every spelling that counts as right among them.

A line is `state: capital`. `|` parts several capitals that the state's own law or constitution names (Bolivia, South
Africa) and other spellings or recent names of one (Kyiv, Kiev): any of them is right, written first is the one shown.
Case, accents, apostrophes and hyphens do not matter (`grading.normalised`), so spellings that differ only in those are
not repeated. A seat of government that is not called a capital in law (The Hague) is not one here.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CAPITALS"]

_TABLE: Final = """
Afghanistan: Kabul
Albania: Tirana | Tiranë
Algeria: Algiers | Alger
Andorra: Andorra la Vella
Angola: Luanda
Antigua and Barbuda: Saint John's
Argentina: Buenos Aires
Armenia: Yerevan | Erevan
Australia: Canberra
Austria: Vienna | Wien
Azerbaijan: Baku
the Bahamas: Nassau
Bahrain: Manama
Bangladesh: Dhaka | Dacca
Barbados: Bridgetown
Belarus: Minsk
Belgium: Brussels | Bruxelles | Brussel
Belize: Belmopan
Benin: Porto-Novo
Bhutan: Thimphu | Thimbu
Bolivia: Sucre | La Paz
Bosnia and Herzegovina: Sarajevo
Botswana: Gaborone
Brazil: Brasília
Brunei: Bandar Seri Begawan
Bulgaria: Sofia
Burkina Faso: Ouagadougou
Burundi: Gitega | Bujumbura
Cabo Verde: Praia
Cambodia: Phnom Penh
Cameroon: Yaoundé
Canada: Ottawa
the Central African Republic: Bangui
Chad: N'Djamena
Chile: Santiago | Santiago de Chile
China: Beijing | Peking
Colombia: Bogotá | Santa Fe de Bogotá
the Comoros: Moroni
the Republic of the Congo: Brazzaville
Costa Rica: San José
Côte d'Ivoire: Yamoussoukro
Croatia: Zagreb
Cuba: Havana | La Habana
Cyprus: Nicosia | Lefkosia
Czechia: Prague | Praha
the Democratic Republic of the Congo: Kinshasa
Denmark: Copenhagen | København
Djibouti: Djibouti
Dominica: Roseau
the Dominican Republic: Santo Domingo
Ecuador: Quito
Egypt: Cairo
El Salvador: San Salvador
Equatorial Guinea: Malabo | Ciudad de la Paz
Eritrea: Asmara
Estonia: Tallinn
Eswatini: Mbabane | Lobamba
Ethiopia: Addis Ababa | Addis Abeba
Fiji: Suva
Finland: Helsinki
France: Paris
Gabon: Libreville
the Gambia: Banjul
Georgia: Tbilisi
Germany: Berlin
Ghana: Accra
Greece: Athens | Athina
Grenada: Saint George's
Guatemala: Guatemala City | Ciudad de Guatemala
Guinea: Conakry
Guinea-Bissau: Bissau
Guyana: Georgetown
Haiti: Port-au-Prince
Honduras: Tegucigalpa | Comayagüela
Hungary: Budapest
Iceland: Reykjavík
India: New Delhi
Indonesia: Jakarta | Nusantara
Iran: Tehran | Teheran
Iraq: Baghdad
Ireland: Dublin | Baile Átha Cliath
Israel: Jerusalem
Italy: Rome | Roma
Jamaica: Kingston
Japan: Tokyo
Jordan: Amman
Kazakhstan: Astana | Nur-Sultan
Kenya: Nairobi
Kiribati: South Tarawa | Tarawa
Kuwait: Kuwait City
Kyrgyzstan: Bishkek
Laos: Vientiane
Latvia: Riga
Lebanon: Beirut
Lesotho: Maseru
Liberia: Monrovia
Libya: Tripoli
Liechtenstein: Vaduz
Lithuania: Vilnius
Luxembourg: Luxembourg
Madagascar: Antananarivo | Tananarive
Malawi: Lilongwe
Malaysia: Kuala Lumpur | Putrajaya
the Maldives: Malé
Mali: Bamako
Malta: Valletta
the Marshall Islands: Majuro
Mauritania: Nouakchott
Mauritius: Port Louis
Mexico: Mexico City | Ciudad de México
Micronesia: Palikir
Moldova: Chișinău | Kishinev
Monaco: Monaco
Mongolia: Ulaanbaatar | Ulan Bator
Montenegro: Podgorica
Morocco: Rabat
Mozambique: Maputo
Myanmar: Naypyidaw | Nay Pyi Taw | Naypyitaw
Namibia: Windhoek
Nauru: Yaren
Nepal: Kathmandu | Katmandu
the Netherlands: Amsterdam
New Zealand: Wellington
Nicaragua: Managua
Niger: Niamey
Nigeria: Abuja
North Korea: Pyongyang
North Macedonia: Skopje
Norway: Oslo
Oman: Muscat
Pakistan: Islamabad
Palau: Ngerulmud | Melekeok
Panama: Panama City | Ciudad de Panamá
Papua New Guinea: Port Moresby
Paraguay: Asunción
Peru: Lima
the Philippines: Manila
Poland: Warsaw | Warszawa
Portugal: Lisbon | Lisboa
Qatar: Doha
Romania: Bucharest | București
Russia: Moscow | Moskva
Rwanda: Kigali
Saint Kitts and Nevis: Basseterre
Saint Lucia: Castries
Saint Vincent and the Grenadines: Kingstown
Samoa: Apia
San Marino: San Marino
São Tomé and Príncipe: São Tomé
Saudi Arabia: Riyadh | Riad
Senegal: Dakar
Serbia: Belgrade | Beograd
Seychelles: Victoria
Sierra Leone: Freetown
Singapore: Singapore
Slovakia: Bratislava
Slovenia: Ljubljana
the Solomon Islands: Honiara
Somalia: Mogadishu | Muqdisho
South Africa: Pretoria | Cape Town | Bloemfontein
South Korea: Seoul
South Sudan: Juba
Spain: Madrid
Sri Lanka: Sri Jayawardenepura Kotte | Sri Jayewardenepura Kotte | Kotte | Colombo
Sudan: Khartoum
Suriname: Paramaribo
Sweden: Stockholm
Switzerland: Bern | Berne
Syria: Damascus
Tajikistan: Dushanbe
Tanzania: Dodoma
Thailand: Bangkok | Krung Thep
Timor-Leste: Dili
Togo: Lomé
Tonga: Nukuʻalofa
Trinidad and Tobago: Port of Spain
Tunisia: Tunis
Türkiye: Ankara
Turkmenistan: Ashgabat | Ashkhabad
Tuvalu: Funafuti
Uganda: Kampala
Ukraine: Kyiv | Kiev
the United Arab Emirates: Abu Dhabi
the United Kingdom: London
the United States: Washington
Uruguay: Montevideo
Uzbekistan: Tashkent
Vanuatu: Port Vila
Venezuela: Caracas
Vietnam: Hanoi
Yemen: Sana'a | Aden
Zambia: Lusaka
Zimbabwe: Harare
"""


def _parse(table: str) -> dict[str, tuple[str, ...]]:
    rows = (line.split(": ") for line in table.strip().splitlines())
    return {state: tuple(name.strip() for name in names.split("|")) for state, names in rows}


CAPITALS: Final[dict[str, tuple[str, ...]]] = _parse(_TABLE)
"""State (with its article, as it stands in a question) -> names of its capital, the one to show first."""
