"""The settings behind every command and every YAML recipe: frozen, checked, unknown keys refused.

One model per concern. The command line is generated from these classes (field name -> `--field-name`,
`description` -> help), so a recipe key and an option cannot drift apart.
"""

from __future__ import annotations

from ridgefit.recipe.applying import DoctorSettings as DoctorSettings
from ridgefit.recipe.applying import GenerateSettings as GenerateSettings
from ridgefit.recipe.applying import VerifySettings as VerifySettings
from ridgefit.recipe.arms import ArmSettings as ArmSettings
from ridgefit.recipe.base import ArmKind as ArmKind
from ridgefit.recipe.base import Device as Device
from ridgefit.recipe.base import DType as DType
from ridgefit.recipe.base import PathOrName as PathOrName
from ridgefit.recipe.base import Settings as Settings
from ridgefit.recipe.capturing import CaptureSettings as CaptureSettings
from ridgefit.recipe.capturing import DataSettings as DataSettings
from ridgefit.recipe.capturing import ModelSettings as ModelSettings
from ridgefit.recipe.costing import BenchPrefillSettings as BenchPrefillSettings
from ridgefit.recipe.costing import MapReadsSettings as MapReadsSettings
from ridgefit.recipe.costing import PlanSettings as PlanSettings
from ridgefit.recipe.drafting import AcceptanceSettings as AcceptanceSettings
from ridgefit.recipe.drafting import CalibrateRefreshSettings as CalibrateRefreshSettings
from ridgefit.recipe.drafting import DraftGenerateSettings as DraftGenerateSettings
from ridgefit.recipe.drafting import TrainDraftSettings as TrainDraftSettings
from ridgefit.recipe.idle import Idle as Idle
from ridgefit.recipe.idle import refuse_idle as refuse_idle
from ridgefit.recipe.idle import require_used as require_used
from ridgefit.recipe.publishing import PullSettings as PullSettings
from ridgefit.recipe.publishing import PushSettings as PushSettings
from ridgefit.recipe.recall import CalibrateRecallSettings as CalibrateRecallSettings
from ridgefit.recipe.recall import RecallEvalSettings as RecallEvalSettings
from ridgefit.recipe.running import EvalSettings as EvalSettings
from ridgefit.recipe.running import RunRecipe as RunRecipe
from ridgefit.recipe.solving import CandidateSettings as CandidateSettings
from ridgefit.recipe.solving import SolveSettings as SolveSettings
from ridgefit.recipe.tasks import NEEDLE_PROMPT as NEEDLE_PROMPT
from ridgefit.recipe.tasks import AgreementSettings as AgreementSettings
from ridgefit.recipe.tasks import CopyingSettings as CopyingSettings
from ridgefit.recipe.tasks import FillTask as FillTask
from ridgefit.recipe.tasks import NeedleSettings as NeedleSettings
from ridgefit.recipe.tasks import NeedleTwoTurnSettings as NeedleTwoTurnSettings
from ridgefit.recipe.tasks import NllSettings as NllSettings
from ridgefit.recipe.tasks import Task as Task
