// Little code behind many headers.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

int main() {
    std::map<std::string, std::vector<int>> places;
    std::string word;
    for (int place = 0; std::cin >> word; place++) {
        places[word].push_back(place);
    }
    for (const auto &[name, all] : places) {
        std::cout << name << ' ' << all.size() << '\n';
    }
}
