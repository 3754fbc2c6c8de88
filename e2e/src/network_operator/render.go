// Renders the files of a folder, in order, with data in JSON: render FOLDER DATA
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
)

var functions = template.FuncMap{
	"imagePath": func(repository, image, version string) string {
		return repository + "/" + image + ":" + version
	},
	// JSON is YAML.
	"yaml": func(value any) (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	},
	"nindent": func(spaces int, text string) string {
		pad := "\n" + strings.Repeat(" ", spaces)
		return pad + strings.ReplaceAll(text, "\n", pad)
	},
}

func main() {
	var data any
	check(json.Unmarshal([]byte(os.Args[2]), &data))
	files, err := filepath.Glob(filepath.Join(os.Args[1], "*.yaml"))
	check(err)
	sort.Strings(files)
	for _, file := range files {
		parsed, err := template.New(filepath.Base(file)).Option("missingkey=error").Funcs(functions).ParseFiles(file)
		check(err)
		fmt.Println("---")
		check(parsed.Execute(os.Stdout, data))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
