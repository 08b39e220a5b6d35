# A tool for which the exit code 3 is a success, on two CPUs.
cwlVersion: v1.2
class: CommandLineTool
requirements:
  DockerRequirement: {dockerPull: "busybox:test"}
  ResourceRequirement: {coresMin: 2}
successCodes: [3]
baseCommand: [sh, -c, 'echo one; echo two; exit 3']
arguments: [$(runtime.cores)]
inputs: {}
outputs:
  text: {type: stdout}
stdout: text.txt
